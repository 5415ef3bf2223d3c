"""The leader's picture of the cluster, drawn from its books when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from headway.cluster import WorkerInfo
from headway.core.scheduler.admission import wanted_reports
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.places import Tracked
from headway.core.scheduler.prefill import PoolStatus
from headway.core.scheduler.state import Counters, SchedulerState
from headway.messages import LoadReport, MeasuredCosts, PassWork
from headway.picture import (
    ClusterPicture,
    CostPicture,
    HeldPicture,
    MovePicture,
    WindowPicture,
    WorkerPicture,
)
from headway.policies.dispatch.protocol import OwnUnit
from headway.request import StreamKey

MOST_MOVES = 64
MOST_HELD = 64
_MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """The scheduler's figures at one instant, for metrics.

    ``num_held_back``: requests not yet in a window, because a worker that has not reported since
    the election may be running them.
    """

    pools: tuple[PoolStatus, ...]
    num_workers: int
    num_tracked: int
    num_awaiting_decode: int
    num_held_back: int
    counters: Counters


class PictureBook:
    """The books as a picture; it keeps what workers last said of passes, costs and loads."""

    def __init__(
        self,
        state: SchedulerState,
        instances: Mapping[str, Instance],
        status: Callable[[], SchedulerStatus],
    ) -> None:
        costs = state.settings.costs
        # a profile that is assumed, for velocities alone, tells no costs of these instances
        is_own = costs.prefill_per_token > 0 or costs.knows_decode
        profile = costs.profile if is_own else None
        self._state = state
        self._instances = instances
        self._status = status
        self._pass_time = profile.pass_time if profile is not None else None
        self._step_tokens = 0
        """Tokens of a step of the workers' load reports; 0 before the first look at one."""
        self._work: dict[str, Sequence[PassWork]] = {}
        self._ahead: dict[str, tuple[float, Sequence[Sequence[float]]]] = {}
        """A worker's seconds of a token's step, and each unit's loads to come: no request by name.
        """
        self._costs: dict[str, MeasuredCosts] = {}

    def measured(self, worker_id: str, costs: MeasuredCosts | None) -> None:
        """Keep what a worker has measured, if it tells something new."""
        if costs is not None:
            self._costs[worker_id] = costs

    def worked(self, worker_id: str, work: Sequence[PassWork]) -> None:
        """Keep a worker's report on its last passes, if it holds one."""
        if work:
            self._work[worker_id] = work

    def foresee(self, worker_id: str, report: LoadReport | None) -> None:
        """Keep a worker's report on its loads to come; None if it reports them no more."""
        if report is None:
            self._ahead.pop(worker_id, None)
        else:
            futures = [tuple(running.future)[:_MOST_STEPS] for running in report.units]
            self._ahead[worker_id] = report.step_time, futures

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self._work.pop(worker_id, None)
        self._ahead.pop(worker_id, None)
        self._costs.pop(worker_id, None)

    def draw(self) -> ClusterPicture:
        """Return the cluster as it is now."""
        status = self._status()
        ordered = [instance for _, instance in sorted(self._instances.items())]
        moves, num_moving = _moves(ordered, self._state.tracked)
        held = [each for pool in status.pools for each in pool.held]
        return ClusterPicture(
            self._state.fencing_token,
            tuple(self._worker(instance) for instance in ordered),
            tuple(_window(pool) for pool in status.pools),
            moves,
            status.num_tracked,
            num_moving,
            status.num_awaiting_decode,
            status.num_held_back,
            tuple(_held(*each) for each in held[:MOST_HELD]),
            len(held),
        )

    def _worker(self, instance: Instance) -> WorkerPicture:
        info, units = instance.info, instance.decode_units()
        num_free = sum(load.num_free_blocks for load in instance.loads)
        num_left = sum(max(unit.num_free_blocks, 0) for unit in units)
        num_blocks = info.num_units * info.num_blocks
        pass_time, predicted = self._passes(info.worker_id)
        step, ahead = self._loads_ahead(info.worker_id)
        return WorkerPicture(
            info.worker_id,
            info.role,
            info.model,
            info.address,
            info.num_units,
            instance.draining,
            num_running=sum(load.num_running for load in instance.loads),
            num_arriving=len(instance.inbound_keys),
            queued_tokens=max(instance.load.queued_tokens, 0),
            kv_tokens=sum(load.kv_tokens for load in instance.loads),
            host_tokens=sum(load.host_tokens for load in instance.loads),
            block_size=info.block_size,
            num_blocks=num_blocks,
            num_used_blocks=max(num_blocks - num_free, 0),
            num_promised_blocks=max(num_free - num_left, 0),
            pass_time=pass_time,
            profile_pass_time=predicted,
            ahead_step=step,
            ahead_tokens=ahead,
            costs=self._costs_of(info),
            constants=self._state.costs.order_of(info.worker_id),
        )

    def _costs_of(self, info: WorkerInfo) -> CostPicture | None:
        measured = self._costs.get(info.worker_id)
        if measured is None:
            return None
        return CostPicture(info.pass_tokens, info.kv_bytes_per_token, measured)

    def _passes(self, worker_id: str) -> tuple[float, float]:
        """Return the mean time of a worker's last passes, and of the same by the profile."""
        reports = [each for each in self._work.get(worker_id, ()) if each.num_passes]
        num_passes, seconds = sum(w.num_passes for w in reports), sum(w.seconds for w in reports)
        if not (num_passes and isfinite(seconds) and seconds > 0):
            return 0.0, 0.0
        return seconds / num_passes, sum(self._predict(each) for each in reports) / num_passes

    def _predict(self, work: PassWork) -> float:
        """Return the seconds that the profile gives these passes; it is linear, so sums will do."""
        if self._pass_time is None:
            return 0.0
        once = self._pass_time.seconds(
            work.prefill_tokens, work.prefill_context, work.batch, work.kv_tokens
        )
        return once + (work.num_passes - 1) * self._pass_time.base

    def _loads_ahead(self, worker_id: str) -> tuple[float, tuple[float, ...]]:
        """Return the seconds of a step, and a worker's load after each, its units added up."""
        step_time, futures = self._ahead.get(worker_id, (0.0, ()))
        self._step_tokens = self._step_tokens or wanted_reports(self._state.settings).step_tokens
        step = step_time * self._step_tokens
        if not step > 0:
            return 0.0, ()
        sums = tuple(float(sum(loads)) for loads in zip(*futures, strict=False))
        return (step, sums) if all(map(isfinite, sums)) else (0.0, ())


def _window(pool: PoolStatus) -> WindowPicture:
    return WindowPicture(
        pool.model,
        pool.num_active,
        pool.num_waiting,
        pool.num_at_door,
        max(pool.backlog_tokens, 0),
        pool.longest_wait_cycles,
        pool.flow_level,
        pool.interval if pool.interval < inf else 0.0,
        pool.mean_pass_time,
    )


def _held(request_id: str, own: OwnUnit) -> HeldPicture:
    worker_id, unit = own.unit
    return HeldPicture(request_id, worker_id, unit, own.num_hit_tokens, own.longest_wait)


def _moves(
    instances: Iterable[Instance], tracked: Mapping[StreamKey, Tracked]
) -> tuple[tuple[MovePicture, ...], int]:
    """Return the first of the requests that move, by their targets, and the number of all."""
    moves: list[MovePicture] = []
    num_moving = 0
    for instance in instances:
        for key in instance.inbound_keys:
            entry = tracked.get(key)
            if entry is None or entry.target is None:
                continue
            num_moving += 1
            if len(moves) < MOST_MOVES:
                moves.append(
                    MovePicture(
                        entry.request_id,
                        entry.worker_id,
                        entry.target.worker_id,
                        entry.num_tokens,
                        entry.is_relocating,
                    )
                )
    return tuple(moves), num_moving
