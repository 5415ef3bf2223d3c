"""Moves of running requests: the policy's choice, rounds of KV while they run, and the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import floor, inf
from typing import NamedTuple

from headway.cluster import UnitId
from headway.core.scheduler.moves import unit_report
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import RunningRequests
from headway.policies import registry
from headway.policies.readers import teach
from headway.policies.rescheduling import (
    Move,
    Rescheduling,
    UnitReport,
    yielding_first,
)
from headway.request import StreamKey
from headway.sim.views.agenda import Agenda
from headway.sim.views.instance import ViewInstance
from headway.sim.views.links import SharedLinks
from headway.sim.views.outlook import Outlook
from headway.sim.views.unit import Unit, ViewRequest


class Wires(NamedTuple):
    """The way between units: seconds of a message and of an order, links, and what has come.

    ``arrived``: called with a request, the unit that it has left, and the one that has it now.
    """

    latency: float
    order_latency: float
    links: SharedLinks
    arrived: Callable[[ViewRequest, Unit, Unit], None]


@dataclass(slots=True, eq=False)
class _Moving:
    """A move: ``num_sent`` tokens of KV in ``num_rounds`` rounds so far; the target has memory for
    ``num_reserved``.
    """

    job: ViewRequest
    source: ViewInstance
    origin: Unit
    target: Unit
    num_reserved: int
    num_sent: int = 0
    num_rounds: int = 0


class ViewMover:
    """Moves at the policy's intervals, while somebody is served."""

    def __init__(
        self,
        settings: SchedulerSettings,
        most_rounds: int,
        agenda: Agenda,
        outlook: Outlook,
        wires: Wires,
    ) -> None:
        self._policy: Rescheduling = registry.make(
            "rescheduling", settings.rescheduling, **settings.rescheduling_params
        )
        teach(self._policy, settings.costs)
        self._most_rounds = most_rounds
        self._agenda, self._outlook, self._wires = agenda, outlook, wires
        self._units: dict[UnitId, tuple[ViewInstance, Unit]] = {}
        self._moved_at: dict[StreamKey, float] = {}
        self._moving: dict[StreamKey, _Moving] = {}
        self._is_waiting = False
        self.num_moves = 0

    def join(self, instance: ViewInstance) -> None:
        """Count it from now on; requests move from and to it if it decodes."""
        for unit in instance.units:
            self._units[unit.view.unit] = instance, unit

    def wait(self) -> None:
        """Decide when the present interval ends: somebody is served."""
        interval = self._policy.interval
        if not self._is_waiting and interval < inf:
            self._is_waiting = True
            turn = floor(self._agenda.now / interval) + 1
            if turn * interval <= self._agenda.now:  # rounded down: this turn has been
                turn += 1
            at = turn * interval
            self._agenda.at(at, self._decide, None)

    def _decide(self, _: None) -> None:
        now = self._agenda.now
        self._is_waiting = False
        self._outlook.look(now)
        units = [
            self._report(running, worker_id, report.step_time)
            for worker_id, report in sorted(self._outlook.reports.items())
            for running in report.units
        ]
        keys = {key for unit in units for key in unit.requests.keys}
        if keys:
            self.wait()
        self._outlook.jobs = {key: self._outlook.jobs[key] for key in keys}
        since = now - self._policy.rest
        self._moved_at = {key: at for key, at in self._moved_at.items() if at > since}
        resting = {key for key in keys if not self._may_move(key)}
        yielding = {key for key in keys if self._outlook.jobs[key].request.standing.yields}
        for move in yielding_first(self._policy, units, resting, yielding, now=now):
            self._begin(move, now)

    def _report(self, running: RunningRequests, worker_id: str, step_time: float) -> UnitReport:
        name = UnitId(worker_id, running.unit)
        instance, unit = self._units[name]
        accepts = instance.info.role.decodes and unit.view.is_open
        return unit_report(instance.info, running, step_time, unit.inbound_tokens, accepts=accepts)

    def _may_move(self, key: StreamKey) -> bool:
        job = self._outlook.jobs[key]
        return job.in_clock and key not in self._moved_at and key not in self._moving

    # --- one move ---------------------------------------------------------------------

    def _begin(self, move: Move, now: float) -> None:
        reports = self._outlook.reports
        source_id, target_id = move.source.worker_id, move.target.worker_id
        if source_id not in reports or target_id not in reports:
            return  # part of another move already
        job, (instance, origin) = self._outlook.jobs[move.key], self._units[move.source]
        _, target = self._units[move.target]
        self._moved_at[move.key] = now
        del reports[source_id]
        reports.pop(target_id, None)
        job.num_tokens = job.num_prompt_tokens + instance.num_drawn(job, now)
        if not target.reserve(job):
            return
        self.num_moves += 1
        moving = self._moving[move.key] = _Moving(job, instance, origin, target, job.num_tokens)
        self._outlook.ordered(job, target)
        self._agenda.at(now + self._wires.order_latency, self._go_on, moving)

    def _go_on(self, moving: _Moving) -> None:
        """Send a round of full blocks, or have the request leave with the rest."""
        job, now, size = moving.job, self._agenda.now, moving.origin.memory.block_size
        if not job.in_clock or job.unit is not moving.origin:
            self._call_off(moving)
            return
        num_kv = job.num_prompt_tokens + moving.source.num_drawn(job, now) - 1
        stop = num_kv // size * size
        if moving.num_rounds < self._most_rounds and stop > moving.num_sent:
            self._send(moving, stop, now, self._go_on)
            moving.num_rounds += 1
        else:
            moving.source.leave(job, now, partial(self._left, moving))

    def _left(self, moving: _Moving, at: float | None) -> None:
        """Send the rest of a request that has stopped; None: it decodes no more."""
        job, target = moving.job, moving.target
        if at is None:
            self._call_off(moving)
            return
        target.unreserve(moving.num_reserved)
        has_room, moving.num_reserved = target.reserve(job), job.num_tokens
        if has_room:
            self._send(moving, job.num_tokens - 1, at, self._landed)
        else:
            del self._moving[job.key]
            self._outlook.dropped(job, target)
            moving.source.stay(job, at)

    def _send(self, moving: _Moving, stop: int, at: float, then: Callable[[_Moving], None]) -> None:
        info, target_id = moving.source.info, moving.target.view.unit.worker_id
        num_tokens = moving.origin.memory.footprint(stop) - moving.num_sent
        moving.num_sent = stop
        size = num_tokens * info.kv_bytes_per_token
        self._wires.links.send(
            info.worker_id, target_id, size, at + self._wires.latency, then, moving
        )

    def _landed(self, moving: _Moving) -> None:
        del self._moving[moving.job.key]
        self._outlook.dropped(moving.job, moving.origin)
        self._wires.arrived(moving.job, moving.origin, moving.target)

    def _call_off(self, moving: _Moving) -> None:
        del self._moving[moving.job.key]
        moving.target.unreserve(moving.num_reserved)
        self._outlook.dropped(moving.job, moving.target)
