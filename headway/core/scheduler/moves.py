"""Moves of running requests.

They even out load (STAR), follow the start of an answer (PASCAL), or empty a worker
(``drains``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import numpy as np

from headway.cluster import UnitId, WorkerInfo
from headway.core.scheduler.decode import DecodePlacer
from headway.core.scheduler.drains import Drains
from headway.core.scheduler.events import Chosen, Considered, Decision
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.places import OnUnit, Tracked
from headway.core.scheduler.state import SchedulerState
from headway.messages import HeldRequest, LoadReport, RunningRequests
from headway.policies import registry
from headway.policies.readers import constants_of
from headway.policies.rescheduling import (
    Move,
    Requests,
    Rescheduling,
    UnitReport,
    yielding_first,
)
from headway.request import StreamKey


class Mover:
    """The arbiter of all moves of running requests.

    Reports of workers that take part in a move are dropped, because their loads are outdated.
    """

    def __init__(
        self,
        state: SchedulerState,
        instances: Mapping[str, Instance],
        placer: DecodePlacer,
    ) -> None:
        self._state = state
        self._instances = instances
        self._placer = placer
        self._policies: dict[str, Rescheduling] = {}
        self._reports: dict[str, LoadReport] = {}
        self._due_at: dict[str, float] = {}
        self.drains = Drains(state, instances, placer)

    @property
    def next_wakeup(self) -> float:
        """Instant of the next decision; infinite for none."""
        return min((self.drains.next_wakeup, *self._due_at.values()))

    # --- at intervals (STAR, Algorithm 1) -----------------------------------------------

    def report(self, instance: Instance, report: LoadReport, *, now: float) -> None:
        """Take a report of the requests that run on a worker."""
        self._reports[instance.info.worker_id] = report
        model = instance.info.model
        interval = self._policy(model).interval
        if interval < inf:
            self._due_at.setdefault(model, now + interval)

    def unreported(self, worker_id: str) -> None:
        """Drop what a worker has reported, because no other report will replace it."""
        self._reports.pop(worker_id, None)

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self.unreported(worker_id)
        self.drains.forget(worker_id)

    def decide(self, *, now: float) -> None:
        """Empty workers that drain; ask the policy for models whose interval has passed."""
        for entry, target in self.drains.wanted(now=now):
            self._relocate(entry, target, now)
        for model, due_at in sorted(self._due_at.items()):
            if now < due_at:
                continue
            policy = self._policy(model)
            self._due_at[model] = now + policy.interval
            resting = self._resting(model, policy.rest, now)
            for units in self._pools(model):
                yielding = self._yielding(units)
                moves = yielding_first(policy, units, resting, yielding, now=now)
                done = [move for move in moves if self._move(move, now)]
                if done and self._state.explains:
                    self._explain(model, units, done, now)

    def _policy(self, model: str) -> Rescheduling:
        policy = self._policies.get(model)
        if policy is None:
            settings = self._state.settings
            policy = registry.make(
                "rescheduling", settings.rescheduling, **settings.rescheduling_params
            )
            self._policies[model] = policy
            self._state.costs.add_reader(model, policy)
        return policy

    def _reported(self, model: str) -> Iterable[tuple[Instance, LoadReport]]:
        for worker_id, instance in sorted(self._instances.items()):
            report = self._reports.get(worker_id)
            if report is not None and instance.info.model == model:
                yield instance, report

    def _pools(self, model: str) -> list[list[UnitReport]]:
        """Return a model's units, those together that KV can go between.

        A prefiller's count only while a request decodes there, after a change of its role: empty,
        they would lower the mean load of those that decode.
        """
        pools: dict[str, list[UnitReport]] = {}
        for instance, report in self._reported(model):
            if not instance.info.kv_kind:
                continue
            decodes = instance.info.role.decodes
            pools.setdefault(instance.info.kv_kind, []).extend(
                unit_report(
                    instance.info,
                    running,
                    report.step_time,
                    instance.inbound_tokens(running.unit),
                    accepts=instance.is_open(running.unit),
                )
                for running in report.units
                if running.unit < instance.info.num_units and (decodes or running.keys)
            )
        return [units for _, units in sorted(pools.items())]

    def _resting(self, model: str, rest: float, now: float) -> frozenset[StreamKey]:
        """Return requests that have just moved, are moving, or are no longer there."""
        return frozenset(
            key
            for instance, report in self._reported(model)
            for running in report.units
            for key in running.keys
            if not self._may_move(key, instance.info.worker_id, now - rest)
        )

    def _yielding(self, units: Sequence[UnitReport]) -> set[StreamKey]:
        """Return the requests that yield by their class."""
        tracked = self._state.tracked
        keys = (key for unit in units for key in unit.requests.keys)
        return {key for key in keys if key in tracked and tracked[key].yields}

    def _may_move(self, key: StreamKey, worker_id: str, since: float) -> bool:
        entry = self._state.tracked.get(key)
        return (
            entry is not None
            and isinstance(entry.place, OnUnit)
            and entry.worker_id == worker_id
            and entry.moved_at <= since
        )

    def _move(self, move: Move, now: float) -> bool:
        entry = self._state.tracked[move.key]
        report = self._reports.get(move.source.worker_id)
        if report is None or move.target.worker_id not in self._reports:
            return False  # part of another move already
        running = report.units[move.source.unit]
        entry.num_tokens = running.num_tokens[running.keys.index(move.key)]
        self._relocate(entry, move.target, now)
        return True

    def _relocate(self, entry: Tracked, target: UnitId, now: float) -> None:
        self._placer.relocate(entry, target, now=now)
        self._reports.pop(entry.worker_id, None)
        self._reports.pop(target.worker_id, None)

    def _explain(
        self, model: str, units: Sequence[UnitReport], moves: Sequence[Move], now: float
    ) -> None:
        considered = tuple(
            Considered(u.unit, (len(u.requests.keys), u.num_tokens), u.capacity_tokens)
            for u in units
        )
        chosen = tuple(
            Chosen(m.key, self._state.tracked[m.key].request_id, m.target, (m.gain,), 0.0)
            for m in moves
        )
        rule = self._state.settings.rescheduling
        used = constants_of(self._policy(model))
        self._state.explain(Decision("rescheduling", now, model, rule, considered, chosen, 0, used))

    # --- at the end of reasoning (PASCAL, Algorithm 2) ----------------------------------

    def answering(self, instance: Instance, held: HeldRequest, *, now: float) -> None:
        """Decide where a request that has ended its reasoning produces its answer."""
        entry = self._state.tracked.get(held.key)
        here = UnitId(instance.info.worker_id, held.unit)
        if entry is None or not self._may_move(held.key, here.worker_id, inf):
            return
        entry.num_tokens, entry.is_answering = held.num_tokens, True
        units = self._placer.units(entry.model, instance.info.kv_kind)
        present = next((u for u in units if u.unit == here), None)
        if present is None:
            return
        choice = self._placer.placement(entry.model).boundary(entry, present, units)
        if choice is not None and choice.unit != here:
            considered = self._placer.considered([entry], units, present)
            self._relocate(entry, choice.unit, now)
            self._placer.explain("boundary", considered, [choice], 0, now)


def unit_report(
    info: WorkerInfo, running: RunningRequests, step_time: float, arriving: int, *, accepts: bool
) -> UnitReport:
    """Return a DP unit as policies see it, with the tokens that are on their way to it."""
    return UnitReport(
        unit=UnitId(info.worker_id, running.unit),
        capacity_tokens=info.num_blocks * info.block_size,
        requests=Requests(
            running.keys,
            np.asarray(running.num_tokens, dtype=np.int64),
            np.asarray(running.remaining, dtype=np.float64),
        ),
        future=np.asarray(running.future, dtype=np.float64) + arriving,
        num_tokens=sum(running.num_tokens) + running.lost_tokens + arriving,
        step_time=step_time,
        kv_bytes_per_token=info.kv_bytes_per_token,
        accepts=accepts,
    )
