"""What all processes of one history share: time, network, store, and what has happened."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from headway.core.settings import PolicySettings
from headway.sim.kernel import Kernel
from proof.checker import DIED, Checker, Record
from proof.vopr.network import SimulatedNetwork
from proof.vopr.process import EPOCH
from proof.vopr.store import SimStore

BLOCK_SIZE = 4
MODEL = "m"
DEVICE_FAILED = "the device failed"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the shells' patience, as the live services are configured."""

    leader_ttl: float = 2.0
    transfer_timeout: float = 4.0
    request_timeout: float = 40.0


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """The size of every worker of a history."""

    num_units: int = 1
    chunk_tokens: int = 16
    num_blocks: int = 24
    host_blocks: int = 0
    prefix_caching: bool = True
    runs_ahead: bool = False
    swaps_beside: bool = False
    pass_seconds: float = 0.01
    predict_every: int = 0
    kv_seconds: float = 0.0
    """Seconds that a transfer of KV takes beyond its messages' delay."""


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


@dataclass(slots=True)
class World:
    """One history."""

    kernel: Kernel
    rng: Random
    network: SimulatedNetwork
    store: SimStore
    policies: PolicySettings
    times: Times
    shape: WorkerShape
    checker: Checker
    sometimes: Counter[str] = field(default_factory=Counter)
    broken: list[Broken] = field(default_factory=list)
    num_passes: int = 0
    deaths: list[float] = field(default_factory=list)
    """When workers ended, or stood still for so long that everybody gave them up."""
    failures: list[float] = field(default_factory=list)
    """When passes failed."""
    last_progress_at: float = 0.0
    """When a client read something last."""
    _digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def hit(self, state: str) -> None:
        """Count that an interesting state was reached."""
        self.sometimes[state] += 1

    def record(self, record: Record) -> None:
        """Take what a client did or read."""
        self.happened(repr(record))
        self.checker.take(record)
        self.last_progress_at = self.kernel.now
        if self.checker.violations:
            raise BrokenPromise

    def excuses(self, message: str, since: float) -> bool:
        """Return whether a refusal is due to what has happened at least twice since an instant."""
        for said, instants in ((DIED, self.deaths), (DEVICE_FAILED, self.failures)):
            if said in message:
                return sum(at >= since for at in instants) >= 2
        return False

    def happened(self, what: str) -> None:
        """Add to the hash of this history."""
        self._digest.update(f"{self.kernel.now!r} {what}\n".encode())

    @property
    def digest(self) -> str:
        """The hash of everything that has happened."""
        return self._digest.hexdigest()

    def require(self, holds: bool, rule: str, detail: str = "") -> None:
        """End the history unless a promise holds."""
        if not holds:
            self.broken.append(Broken(self.kernel.now, rule, detail))
            raise BrokenPromise

    def now(self) -> float:
        """Return the true time, seconds since the epoch."""
        return EPOCH + self.kernel.now
