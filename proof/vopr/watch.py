"""What every core hears and orders, seen from beside: promises that hold at every moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any
from unittest import mock

import structlog

from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import Deliver
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import Elected, WorkerReported
from headway.core.scheduler.places import Moving
from headway.core.worker.core import WorkerCore
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    KvAborted,
    KvOffered,
    LeaderConnected,
    RefuseKv,
    StartTransfer,
    TransferEnded,
)
from headway.messages import (
    CancelStream,
    ChangeRole,
    Dispatch,
    Drain,
    GiveBack,
    HandedBack,
    Handoff,
    HandoffResult,
    Lost,
)
from headway.request import Request, StreamKey
from proof.vopr.invariants import check_blocks, check_runs
from proof.vopr.loop import ProcessLife, owner
from proof.vopr.world import ShellWorld
from services.runtime import driver
from services.runtime.store import MEMBER_TTL


class Watch:
    """The watch over one core, in place of its record of events."""

    def __init__(
        self, world: ShellWorld, life: ProcessLife, core: Any, watches: Sequence[Watch]
    ) -> None:
        """``watches``: those over all cores of the history."""
        self._world = world
        self._watches = watches
        self._life = life
        self.core = core
        self._fencing_token = 0
        self._given_late: set[StreamKey] = set()
        """Attempts that a leader gave when it had been replaced, and did not know it."""
        self._given_by: dict[StreamKey, int] = {}
        """The fencing token of the leader that gave an attempt."""

    def note(self, event: object, now: float, actions: Sequence[object]) -> None:
        """Look at one step of the core."""
        world, core = self._world, self.core
        world.happened(f"{self._life.name} {type(event).__name__} {len(actions)}")
        if isinstance(core, WorkerCore):
            check_blocks(world, self._life.name, core)
            check_runs(world, self._life.name, core)
            if isinstance(event, Dispatch):
                for request in chain.from_iterable(batch.requests for batch in event.batches):
                    self._check_alone(request.key)
                    self._given_by[request.key] = self._fencing_token
                    if self._fencing_token < world.newest_token:
                        self._given_late.add(request.key)
            self._worker_heard(event, actions)
            for action in actions:
                self._worker_orders(core, action)
        elif isinstance(core, SchedulerCore):
            self._scheduler_heard(event)
        elif isinstance(core, GatewayCore):
            self._gateway_heard(event, actions)

    def close(self) -> None:
        """Look a last time."""
        if isinstance(self.core, SchedulerCore):
            self._world.hit("a leader steps down")
            if _has_moves(self.core):
                self._world.hit("a leader steps down with moves in flight")

    def _worker_heard(self, event: object, actions: Sequence[object]) -> None:
        world, core = self._world, self.core
        match event:
            case LeaderConnected():
                world.require(
                    event.fencing_token >= self._fencing_token,
                    "one fencing owner",
                    f"{self._life.name} follows {event.fencing_token} after {self._fencing_token}",
                )
                self._fencing_token = event.fencing_token
            case Handoff():
                world.require(
                    event.fencing_token == self._fencing_token,
                    "one fencing owner",
                    f"{self._life.name} obeys {event.fencing_token} under {self._fencing_token}",
                )
            case KvOffered(header) if any(isinstance(each, AcceptKv) for each in actions):
                token = header.fencing_token
                detail = f"{self._life.name} takes KV of {token} under {self._fencing_token}"
                world.require(token >= self._fencing_token, "one fencing owner", detail)
            case CancelStream():
                sequence = core.find(event.key)
                if sequence is not None:
                    world.hit(f"a request is cancelled while {sequence.stage.name}")
                    if sequence.departure is not None:
                        world.hit("a request is cancelled while it moves")
            case ChangeRole() if core.num_held:
                world.hit("a worker changes its role with requests")
            case Drain() if core.num_held:
                world.hit("a worker drains with requests")
            case GiveBack():
                world.hit("a worker is asked to hand back")
            case TransferEnded() if not event.ok:
                world.hit("a transfer of KV is interrupted")
            case KvAborted():
                world.hit("KV on its way is lost")

    def _check_alone(self, key: StreamKey) -> None:
        """Require that an attempt that is dispatched here is on no other worker.

        Nobody can tell after the store has lost where it was, or as long as it lacks workers. Nor
        can a leader whose predecessor gave it away after the election, and the gateway did not
        hear of it: that worker stops as soon as it reports. Nor can a leader that has been
        replaced meanwhile, and does not know it, where its successor has given the attempt: the
        gateway knows where, and stops the one here.
        """
        world, now = self._world, self._world.loop.time()
        knows_all_at = world.store.damaged_at + MEMBER_TTL
        if world.dispatched_at.setdefault(key, now) <= knows_all_at:
            return
        for other in self._watches:
            life = other._life
            if other is self or not isinstance(other.core, WorkerCore):
                continue
            if not life.is_alive or life.is_paused:  # it may have lost its lease meanwhile
                continue
            if other._given_by.get(key, 0) > self._fencing_token:
                continue
            is_named = other.core.info.worker_id in world.placed_on.get(key, ())
            if key in other._given_late and not is_named:
                continue
            detail = f"{key} is given to {self._life.name}, and {life.name} has it"
            is_there = other.core.find(key) is not None
            world.require(not is_there, "an attempt is on one worker at a time", detail)

    def _worker_orders(self, core: WorkerCore, action: object) -> None:
        world = self._world
        match action:
            case StartTransfer() if not action.first_token:
                world.hit(
                    "a request moves while it runs" if action.more else "a request is handed off"
                )
            case RefuseKv():
                world.hit(f"KV is refused: {action.error.code.name}")
            case AcknowledgeKv():
                world.hit("an offer is acknowledged without KV")
            case HandedBack() if action.keys:
                world.hit("a worker hands requests back")

    def _scheduler_heard(self, event: object) -> None:
        world = self._world
        match event:
            case Request():
                world.placed_on[event.key] = event.placed_on
            case Elected():
                world.newest_token = max(world.newest_token, event.fencing_token)
                world.hit("a leader is elected")
                if event.saved:
                    world.hit("a takeover with live requests")
                if any(each.target is not None for each in event.saved):
                    world.hit("a takeover with moves in flight")
            case WorkerReported(_, HandoffResult(ok=False)):
                world.hit("a handoff fails")

    def _gateway_heard(self, event: object, actions: Sequence[object]) -> None:
        world = self._world
        if isinstance(event, Lost):
            world.hit("a request is lost with its worker")
        for action in actions:
            if isinstance(action, Request) and action.attempt:
                world.hit("a request is resubmitted")
            elif isinstance(action, Deliver) and action.pauses:
                world.hit("tokens come from another worker")


def _has_moves(core: SchedulerCore) -> bool:
    return any(isinstance(each.place, Moving) for each in core._state.tracked.values())


@contextmanager
def watched(world: ShellWorld, watches: list[Watch]) -> Iterator[None]:
    """Watch every core that gets a driver, and every error that a shell logs."""

    def record_of(core: Any) -> Watch:
        watch = Watch(world, owner(), core, watches)
        watches.append(watch)
        return watch

    def heed(logger: Any, level: str, fields: Any) -> Any:
        if fields.get("exc_info"):
            detail = f"{owner().name}: {fields['event']}: {fields['exc_info']!r}"
            world.require(False, "a shell raises nothing", detail)
        world.hit(f"log: {fields['event']}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.StackInfoRenderer(), _exception, heed],
        wrapper_class=structlog.make_filtering_bound_logger(30),
        cache_logger_on_first_use=False,
    )
    try:
        with mock.patch.object(driver, "record_of", record_of):
            yield
    finally:
        structlog.configure(**before)


def _exception(logger: Any, level: str, fields: Any) -> Any:
    """Put the error itself in place of a flag."""
    if fields.get("exc_info") is True:
        fields["exc_info"] = sys.exc_info()[1]
    return fields
