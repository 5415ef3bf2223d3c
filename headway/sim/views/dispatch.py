"""Requests that wait for a dispatch, and the policies that give them to instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from heapq import nsmallest
from math import inf
from typing import cast

from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Source
from headway.policies import registry
from headway.policies.dispatch import Dispatching, InstanceLoad, Turn
from headway.policies.dispatch.feasibility import in_time_first
from headway.policies.packing import Packing
from headway.policies.readers import GammaReader, teach
from headway.request import StreamKey
from headway.sim.views.agenda import Agenda
from headway.sim.views.instance import PassEnded, ViewInstance
from headway.sim.views.unit import Unit, ViewRequest


class Dispatcher:
    """The window and the instances that prefill; ``order_latency``: of an order, seconds."""

    def __init__(
        self, settings: SchedulerSettings, agenda: Agenda, order_latency: float, round_trip: float
    ) -> None:
        self.window: dict[StreamKey, ViewRequest] = {}
        self._agenda = agenda
        self._order_latency = order_latency
        self._dispatching: Dispatching = registry.make(
            "dispatch", settings.dispatch, **settings.dispatch_params
        )
        self._packing: Packing = registry.make(
            "packing", settings.packing, **settings.packing_params
        )
        for policy in (self._dispatching, self._packing):
            teach(policy, settings.costs)
        self._dispatching.acknowledged(round_trip)  # of every dispatch here
        kind = type(self._dispatching)
        self._hears_ends = kind.ended is not Dispatching.ended
        self._instances: dict[str, ViewInstance] = {}
        self._decoding: list[ViewInstance] = []
        self._loads: list[InstanceLoad] = []
        self._dispatch_id = 0
        self._wake_at = inf

    def join(self, instance: ViewInstance) -> None:
        """Give it requests from now on."""
        worker_id = instance.info.worker_id
        self._instances[worker_id] = instance
        self._loads.append(cast(InstanceLoad, instance.load))  # it has the same attributes
        if instance.info.role.decodes:
            self._decoding.append(instance)
        self._dispatching.join(worker_id, instance.info.role)

    def ended(self, report: PassEnded) -> None:
        """Take the end of a pass, as the scheduler hears of it."""
        instance = report.instance
        instance.load.computed(report.computed)
        if self._hears_ends:
            self._dispatching.ended(
                instance.info.worker_id,
                report.dispatch_ids,
                report.pass_time,
                now=self._agenda.now,
            )

    def arrived(self, job: ViewRequest) -> None:
        """Take a request that is new here."""
        self.window[job.key] = job
        self.dispatch()

    def dispatch(self) -> None:
        """Use every turn that is due."""
        now, window, policy = self._agenda.now, self.window, self._dispatching
        policy.expire(now=now)
        for instance in self._decoding:
            if now >= instance.report_at:
                instance.look(now)
        tried = False
        while window:
            turns = policy.turns(self._loads, len(window), now=now, waiting=window.values())
            for turn in turns:
                tried = True
                if self._use(turn, now):
                    break
                policy.passed(turn, now=now)
            else:
                break
        if window:
            self._wait(tried, now)

    def _wait(self, tried: bool, now: float) -> None:
        """Note who was left over by a turn; wake up when time alone may change something."""
        for job in reversed(self.window.values()):
            if job.left_over or not tried:
                break  # as are all before it
            job.left_over = True
        at = self._dispatching.wakeup(self._loads, len(self.window), now=now)
        if at is not None and at < self._wake_at:
            self._wake_at = at
            self._agenda.at(at, self._wake, at)

    def tune(self, gamma: float) -> None:
        """Pack by the γ that is fitted for the workers, too."""
        if isinstance(self._packing, GammaReader):
            self._packing.tune(gamma, Source.MEASURED)

    def _wake(self, at: float) -> None:
        if at == self._wake_at:
            self._wake_at = inf
        if self.window:
            self.dispatch()

    def _use(self, turn: Turn, now: float) -> bool:
        instance = self._instances[turn.worker_id]
        own = {key: each.unit for key, each in turn.own.items()}
        rooms = instance.load.rooms
        beyond = [int(max(0.0, room.capacity - turn.max_tokens)) for room in rooms]
        for room, num_tokens in zip(rooms, beyond, strict=True):
            room.capacity -= num_tokens
        assigned = [
            each
            for legacy, new in self._groups(turn, instance, now)
            for each in self._packing.pack(legacy, new, rooms, capped=turn.capped, own=own)
        ]
        for room, num_tokens in zip(rooms, beyond, strict=True):
            room.capacity += num_tokens
        if not assigned:
            return False
        jobs: list[tuple[ViewRequest, Unit]] = []
        for job, unit_id, _ in assigned:
            del self.window[job.key]
            instance.load.queued_tokens += job.num_tokens
            instance.load.came(job.num_prompt_tokens)
            unit = instance.units[unit_id.unit]
            jobs.append((job, unit))
            if unit.view.bucket_counts:
                unit.view.bucket_counts[job.bucket] += 1
        self._dispatch_id += 1
        instance.receive(now + self._order_latency, self._dispatch_id, jobs)
        self._dispatching.dispatched(turn, self._dispatch_id, now=now)
        return True

    def _groups(
        self, turn: Turn, instance: ViewInstance, now: float
    ) -> list[tuple[Sequence[ViewRequest], Sequence[ViewRequest]]]:
        """Return (requests left over from earlier cycles, new ones) that the turn may take.

        Those of the first are packed first, as in the scheduler's window.
        """
        window = self.window
        jobs: Iterable[ViewRequest] = window.values()
        if turn.keys is not None:
            jobs = [window[key] for key in turn.keys if key in window]
        most = instance.max_request_tokens
        if instance.info.role.decodes:
            fitting = (job for job in jobs if job.num_total <= most)
        else:
            fitting = (job for job in jobs if job.num_prompt_tokens < most)
        steps_back = partial(self._dispatching.steps_back, now=now)
        if turn.max_requests is not None:  # oldest first: those left over come first
            return [((), nsmallest(turn.max_requests, fitting, steps_back))]
        return [
            ([j for j in kind if j.left_over], [j for j in kind if not j.left_over])
            for kind in in_time_first([*fitting], steps_back)
        ]
