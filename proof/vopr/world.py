"""What all processes of one history share: loop, wires, store, and what has happened."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from headway.forward_pass import ForwardPass
from headway.request import StreamKey
from proof.checker import DIED, Checker, Record
from proof.vopr.loop import ProcessLife, VirtualLoop, VirtualThread
from proof.vopr.network import MemoryNetwork
from proof.vopr.rpc import Ports
from proof.vopr.scenario import SeedScenario
from proof.vopr.store import MemoryClient, MemoryRedis
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.machine import Machine
from services.runtime.store import Store

DEVICE_FAILED = "the device failed"
EPOCH = 1_700_000_000.0
"""The true time, in seconds since the epoch, when a history begins."""
_THREAD_DELAY = 2e-4


@dataclass(slots=True)
class Broken:
    """A promise that the cluster broke, beyond what clients read."""

    at: float
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"at {self.at:.6f}: {self.rule}: {self.detail}"


class BrokenPromise(Exception):  # noqa: N818 (it ends a history)
    """The end of a history whose promises are broken."""


class VirtualClock(Clock):
    """The clock of a host that is ``error`` seconds ahead, on virtual time."""

    def __init__(self, loop: VirtualLoop, error: float) -> None:
        self._loop = loop
        self._error = error

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return EPOCH + self._error + self._loop.time()


class VirtualMachine(Machine):
    """The machine of one life of a process: its passes take what the world says."""

    def __init__(self, world: ShellWorld, name: str, pid: int) -> None:
        self._world = world
        self._pid = pid
        self._rng = Random(world.rng.getrandbits(64))
        self.engine_drag = 1.0
        """How many times longer its passes take."""
        self.pass_failures = 0
        """Passes that will fail, for the device's sake."""
        self.is_computing = False
        self.name = name

    def pid(self) -> int:
        """Return the id of this life."""
        return self._pid

    def clock(self, error: float) -> Clock:
        """Return the host's clock."""
        return VirtualClock(self._world.loop, error)

    async def connect(self, config: ServiceConfig) -> Store:
        """Return a store that may be away."""
        return self._world.connect(config)

    def draw(self, num_bytes: int) -> bytes:
        """Return bytes of the history's seed."""
        return self._rng.randbytes(num_bytes)

    def thread(self, name: str) -> Executor:
        """Return a thread on virtual time."""
        return VirtualThread(self._world.loop, self._seconds)

    def _seconds(self, arguments: Sequence[Any]) -> float:
        passes = [each for each in arguments if isinstance(each, ForwardPass)]
        return sum(map(self.pass_seconds, passes)) or _THREAD_DELAY

    def pass_seconds(self, forward_pass: ForwardPass) -> float:
        """Return how long a pass takes."""
        num_tokens = sum(len(item.token_ids) for item in forward_pass.items)
        return self._world.scenario.shape.pass_time(num_tokens) * self.engine_drag


class ShellWorld:
    """One history."""

    def __init__(self, scenario: SeedScenario, loop: VirtualLoop) -> None:
        self.scenario = scenario
        self.loop = loop
        self.rng = Random(scenario.seed)
        self.sometimes: Counter[str] = Counter()
        self.wires = MemoryNetwork(loop, self.rng, self.hit, self.happened)
        self.wires.takes["TransferKv"] = scenario.shape.kv_seconds
        self.ports = Ports(self.wires)
        self.store = MemoryRedis(loop, self.rng, EPOCH, self.hit)
        self.store.own = self.wires.own
        self.pids = count(1)
        self.checker = Checker(bound=2.0)
        self.broken: list[Broken] = []
        self.num_passes = 0
        self.deaths: list[float] = []
        """When workers ended, or stood still for so long that everybody gave them up."""
        self.silent_at: dict[str, float] = {}
        """When processes last died, or stood still, without a word: keepalive tells their peers."""
        self.failures: list[float] = []
        """When passes failed."""
        self.dispatched_at: dict[StreamKey, float] = {}
        """When each attempt first reached a worker."""
        self.newest_token = 0
        """The fencing token of the newest leader."""
        self.placed_on: dict[StreamKey, tuple[str, ...]] = {}
        """The workers that a gateway named when it last asked for an attempt."""
        self.fails = loop.create_future()
        """Done once a promise is broken."""
        self.log: list[str] | None = None
        """Everything that has happened, if somebody wants to read it."""
        self._digest = hashlib.blake2b(digest_size=16)
        loop.thread_delay = lambda: self.rng.random() * 2 * _THREAD_DELAY
        nobody = ProcessLife(loop, "whoever forgot a task")
        loop.set_exception_handler(lambda _, context: self.failed(nobody, context))

    def connect(self, config: ServiceConfig) -> Store:
        """Return a connection to the store."""
        return Store(MemoryClient(self.store).as_redis(), config.cluster)

    def hit(self, state: str) -> None:
        """Count that an interesting state was reached."""
        self.sometimes[state] += 1

    def record(self, record: Record) -> None:
        """Take what a client did or read."""
        self.happened(repr(record))
        self.checker.take(record)
        if self.checker.violations:
            self._fail()

    def excuses(self, message: str, since: float) -> bool:
        """Return whether a refusal is due to what has happened at least twice since an instant."""
        for said, instants in ((DIED, self.deaths), (DEVICE_FAILED, self.failures)):
            if said in message:
                return sum(at >= since for at in instants) >= 2
        return False

    def happened(self, what: str) -> None:
        """Add to the hash of this history."""
        if self.loop.is_over:
            return
        line = f"{self.loop.time()!r} {what}"
        self._digest.update(line.encode() + b"\n")
        if self.log is not None:
            self.log.append(line)

    @property
    def digest(self) -> str:
        """The hash of everything that has happened."""
        return self._digest.hexdigest()

    def require(self, holds: bool, rule: str, detail: str = "") -> None:
        """CallEnd the history soon unless a promise holds."""
        if not holds and not self.loop.is_over:
            self.broken.append(Broken(self.loop.time(), rule, detail))
            self._fail()

    def _fail(self) -> None:
        if not self.fails.done():
            self.fails.set_result(None)

    def failed(self, life: ProcessLife, context: dict[str, Any]) -> None:
        """Take an error that nobody awaits, or that ended a task which a process lives by."""
        error = context.get("exception")
        self.require(
            False, "a shell raises nothing", f"{life.name}: {context['message']}: {error!r}"
        )
