"""Fuzzing of the cores: well-formed messages of peers that make no sense, in any order.

Each message goes through the wire and the checks of the links first, as a peer's would. Ids come
from a few, so that they often name what exists.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headway.cluster import Role, WorkerInfo
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    Release,
    SchedulerConnected,
    SchedulerDisconnected,
    Submit,
    WorkerDetached,
    WorkersMissing,
)
from headway.core.gateway.settings import GatewaySettings
from headway.core.protocol import Core
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Elected,
    GatewayConnected,
    GatewayDisconnected,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.settings import policy_settings
from headway.core.worker.core import WorkerCore
from headway.core.worker.events import GatewayGone, LeaderConnected
from headway.cost.costs import Costs
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.messages import (
    CancelStream,
    ControlHello,
    EndForward,
    GatewayHello,
    Snapshot,
    named_in,
)
from headway.presets import PRESETS
from headway.request import Request, SamplingParams, StreamKey
from proof.fuzz.campaign import raised
from proof.fuzz.messages import fill
from protos import gateway_pb2, scheduler_pb2, worker_pb2
from services.runtime import wire

_STEP_BYTES = 4
_MOST_STEPS = 60
_WORKERS = ("w", "w2")
_GATEWAY = "g"
_MODEL = "m"
_BEGIN = 1_000.0
_PRESETS = tuple(sorted(PRESETS))
_COSTS = Costs(profile=load_profile("llama-8b-a100"))


class Hostile(Protocol):
    """A core and a way to draw the next thing that happens to it."""

    core: Core[Any, Any]

    def events(self, rng: random.Random) -> Iterator[object]:
        """Yield events of one step; HeadwayError where the link would refuse the message."""

    def learn(self, actions: Sequence[object]) -> None:
        """Keep ids that the core has named."""


def _message(kind: type[Any], rng: random.Random, ids: Mapping[str, Sequence[Any]]) -> Any:
    message = fill(kind(), rng, hostile=rng.choice((0.0, 0.02, 0.1)))
    _point(message, rng, ids)
    return message


def _point(message: Message, rng: random.Random, ids: Mapping[str, Sequence[Any]]) -> None:
    """Let ids name what exists, mostly."""
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for each in value if field.is_repeated else (value,):
                _point(each, rng, ids)
        elif field.name in ids and rng.random() < 0.9:
            if field.is_repeated:
                for place in range(len(value)):
                    value[place] = rng.choice(ids[field.name])
            else:
                setattr(message, field.name, rng.choice(ids[field.name]))


class HostileGateway:
    """A gateway between a scheduler and workers that say anything."""

    def __init__(self, rng: random.Random) -> None:
        settings = GatewaySettings(max_model_len=64, max_waiting=8, request_timeout=20.0)
        self.core: Core[Any, Any] = GatewayCore(_GATEWAY, "g:1", settings)
        self._streams: list[int] = [1]
        self._num_submitted = 0

    def learn(self, actions: Sequence[object]) -> None:
        """Keep the stream ids of attempts."""
        self._streams += [each.stream_id for each in actions if isinstance(each, Request)]

    def events(self, rng: random.Random) -> Iterator[object]:
        """Yield one of a client's, a worker's or the scheduler's events."""
        ids = {
            "stream_id": self._streams,
            "stream_ids": self._streams,
            "gateway_id": (_GATEWAY,),
            "worker_id": _WORKERS,
            "indices": (0, 0, 1, 2, 3),
        }
        match rng.randrange(7):
            case 0 | 1:
                self._num_submitted += 1
                yield _submit(self._num_submitted, rng)
            case 2:
                yield Release(f"r{rng.randrange(self._num_submitted + 1)}")
            case 3:
                lack = WorkersMissing({"": "no worker decodes"} if rng.random() < 0.5 else {})
                yield rng.choice(
                    (SchedulerConnected(), SchedulerDisconnected(), WorkerDetached("w"), lack)
                )
            case 4:
                messages = wire.TO_GATEWAY.unpack_all(
                    _message(scheduler_pb2.SchedulerMessage, rng, ids)
                )
                for message in messages:
                    if all(key.gateway_id == _GATEWAY for key in named_in(message)):
                        yield message
            case _:
                yield wire.unpack_token_batch(_message(gateway_pb2.TokenBatch, rng, ids))


def _submit(number: int, rng: random.Random) -> Submit:
    prompt = tuple(rng.randrange(50) for _ in range(rng.randint(1, 8)))
    sampling = SamplingParams(max_tokens=rng.randint(1, 20))
    request = Request(f"r{number}", _MODEL, prompt, sampling, _BEGIN, 0, 0, _GATEWAY, "g:1")
    return Submit(request)


class HostileScheduler:
    """A leader whose gateways and workers say anything."""

    def __init__(self, rng: random.Random) -> None:
        settings = policy_settings(PRESETS[rng.choice(_PRESETS)], _COSTS).scheduler
        self.core: Core[Any, Any] = SchedulerCore(settings)
        self._num_units: dict[str, int] = {}
        self._dispatches: list[int] = [0]
        self._is_elected = False

    def learn(self, actions: Sequence[object]) -> None:
        """Keep the dispatch ids of orders."""
        for action in actions:
            if isinstance(action, SendToWorker):
                self._dispatches.append(getattr(action.message, "dispatch_id", 0))

    def events(self, rng: random.Random) -> Iterator[object]:
        """Yield one of a worker's or a gateway's events; first of all the election."""
        if not self._is_elected:
            self._is_elected = True
            yield Elected(7, _WORKERS[: rng.randrange(3)])
        streams = (0, 1, 2, 3)
        ids: dict[str, Sequence[Any]] = {
            "stream_id": streams,
            "stream_ids": streams,
            "gateway_id": (_GATEWAY,),
            "model": (_MODEL,),
            "unit": (0, 0, 1),
            "target_worker_id": _WORKERS,
            "dispatch_id": self._dispatches,
            "num_units": (1, 2),
        }
        match rng.randrange(8):
            case 0:
                yield rng.choice((GatewayConnected(_GATEWAY), GatewayDisconnected(_GATEWAY)))
            case 1:
                worker_id = rng.choice(_WORKERS)
                self._num_units.pop(worker_id, None)
                yield WorkerGone(worker_id, "its stream broke")
            case 2 | 3:
                said = wire.FROM_GATEWAY.unpack_all(
                    _message(scheduler_pb2.GatewayMessage, rng, ids), now=0.0
                )
                for each in said:
                    if not isinstance(each, GatewayHello) and each.key.gateway_id == _GATEWAY:
                        yield each
            case _:
                yield from self._report(rng, ids)

    def _report(
        self, rng: random.Random, ids: Mapping[str, Sequence[Any]]
    ) -> Iterator[WorkerReported]:
        worker_id = rng.choice(_WORKERS)
        packed = _message(worker_pb2.WorkerToScheduler, rng, {**ids, "worker_id": (worker_id,)})
        message = wire.FROM_WORKER.unpack(packed)
        if isinstance(message, Snapshot):
            if message.info.worker_id != worker_id:
                return
            self._num_units[worker_id] = message.info.num_units
        held = message.held if isinstance(message, Snapshot) else ()
        held = message.prefilled if isinstance(message, EndForward) else held
        num_units = self._num_units.get(worker_id, 0)
        if num_units and all(each.unit < num_units for each in held):
            yield WorkerReported(worker_id, message)


class HostileWorker:
    """A worker whose leader orders anything; its passes never end."""

    def __init__(self, rng: random.Random) -> None:
        preset = PRESETS[rng.choice(_PRESETS)]
        policies = policy_settings(preset, _COSTS)
        role = Role(rng.choice(("prefill", "decode", "unified")))
        info = WorkerInfo("w", "w:1", role, _MODEL, 2, 16, 4, 32, 64, 64)
        batching, estimation = policies.make_batching(), policies.make_estimation()
        self.core: Core[Any, Any] = WorkerCore(
            info, (2,), batching, policies.worker, estimation=estimation
        )

    def learn(self, actions: Sequence[object]) -> None:
        """Keep nothing."""

    def events(self, rng: random.Random) -> Iterator[object]:
        """Yield one of the leader's orders, or the end of a stream."""
        streams = (0, 1, 2, 3)
        ids = {
            "stream_id": streams,
            "gateway_id": (_GATEWAY,),
            "model": (_MODEL,),
            "unit": (0, 0, 1),
            "target_worker_id": ("w2",),
            "dispatch_id": (1, 2, 3),
        }
        match rng.randrange(8):
            case 0:
                yield LeaderConnected(fencing_token=rng.randrange(10))
            case 1:
                yield rng.choice((GatewayGone(_GATEWAY), CancelStream(StreamKey(_GATEWAY, 1))))
            case _:
                order = wire.TO_WORKER.unpack(
                    _message(worker_pb2.SchedulerToWorker, rng, ids), now=0.0
                )
                if not isinstance(order, ControlHello):
                    yield order


_CORES: Sequence[Callable[[random.Random], Hostile]] = (
    HostileGateway,
    HostileScheduler,
    HostileWorker,
)


class CoresTarget:
    """An input is a core and the seeds of what happens to it, four bytes each."""

    unit = _STEP_BYTES

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Return how many events were taken, and how many messages were refused."""
        return self._outcomes

    def make(self, rng: random.Random) -> bytes:
        """Return the seeds of some steps."""
        return rng.randbytes(_STEP_BYTES * rng.randint(2, _MOST_STEPS))

    def attempt(self, given: bytes) -> str:
        """Let all of it happen to a new core; nothing but HeadwayError may be raised."""
        steps = [given[at : at + _STEP_BYTES] for at in range(0, len(given), _STEP_BYTES)]
        if not steps:
            return ""
        first = random.Random(steps[0])
        hostile = first.choice(_CORES)(first)
        now = _BEGIN
        for step in steps[1:]:
            rng = random.Random(step)
            now += rng.choice((0.0, 0.001, 0.1, 2.0, 30.0))
            try:
                self._happen(hostile, rng, now)
            except HeadwayError:
                self._outcomes["refused"] += 1
            except Exception as error:
                return f"{type(hostile.core).__name__}: {raised(error)}"
        return ""

    def _happen(self, hostile: Hostile, rng: random.Random, now: float) -> None:
        core = hostile.core
        wake_at = core.next_wakeup
        if wake_at is not None and wake_at <= now:
            hostile.learn(core.wake(now=now))
            self._outcomes["woken"] += 1
        for event in hostile.events(rng):
            hostile.learn(core.handle(event, now=now))
            self._outcomes["taken"] += 1

    def check(self) -> str:
        """Return nothing: each input stands alone."""
        return ""

    def close(self) -> None:
        """Do nothing: nothing was started."""
