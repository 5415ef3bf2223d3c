"""``sbs``: Staggered Batch Scheduling's adaptive interval and triple-checked readiness.

Algorithm 1 and section 4.1 of the paper; ``docs/sbs.md`` says what it leaves open and how that
is settled here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from headway.bounds import Bounded, between, over
from headway.policies.answer import Answer
from headway.policies.dispatch.protocol import Dispatching, Expiry, InstanceLoad, Turn, Waiting

TOP_UP = "top-up"


@dataclass(slots=True)
class _Instance:
    """``awaited_id``: the last dispatch, while its EndForward is out. ``turn``: its number."""

    awaited_id: int | None = None
    watchdog_at: float = inf
    fallback: bool = False
    dispatched_at: float = -inf
    turn: int = 0
    ended_at: float = -inf


@dataclass(frozen=True, slots=True)
class SbsParams(Bounded):
    """``default_pass_time``: the profiled T̄ before the first report, s. ``window``: W, passes.

    ``watchdog_floor``: the least watchdog, seconds, for passes shorter than a machine's hiccups.
    """

    default_pass_time: float = over(0, default=0.05)
    window: int = between(1, 100_000, default=32)
    watchdog_factor: float = between(1, 1e6, default=5.0)
    watchdog_floor: float = between(0, 1e6, default=0.0)


class StaggeredBatch(Dispatching):
    """Dispatches a batch an instance and pass, in turns, an adaptive interval apart."""

    lingers: ClassVar[bool] = True

    def __init__(self, params: SbsParams | None = None) -> None:
        params = params or SbsParams()
        super().__init__(params.window, params.default_pass_time)
        self._watchdog_factor = params.watchdog_factor
        self._watchdog_floor = params.watchdog_floor
        self._instances: dict[str, _Instance] = {}
        self._cycle_at = -inf
        self._num_turns = 0

    # --- Algorithm 1 ------------------------------------------------------------------

    @property
    def interval(self) -> float:
        """``I = (T̄ + L_net) / N_active``; infinite without an instance: nothing is dispatched."""
        num_active = len(self._instances)
        return self._cycle_time / num_active if num_active else inf

    @property
    def _cycle_time(self) -> float:
        return self._pass_times.value + self._latencies.value

    def join(self, worker_id: str) -> None:
        """Add an instance to N_active."""
        self._instances.setdefault(worker_id, _Instance())

    def leave(self, worker_id: str) -> None:
        """Remove an instance from N_active."""
        self._instances.pop(worker_id, None)

    # --- readiness --------------------------------------------------------------------

    def dispatched(self, turn: Turn, dispatch_id: int, *, now: float) -> None:
        """Arm the watchdog: the instance is not ready until this dispatch ends."""
        instance = self._instances[turn.worker_id]
        self._num_turns += 1
        instance.turn = self._num_turns
        instance.awaited_id = dispatch_id
        timeout = max(self._watchdog_factor * self._pass_times.value, self._watchdog_floor)
        instance.watchdog_at = now + timeout
        instance.dispatched_at = now
        self.passed(turn, now=now)

    def passed(self, turn: Turn, *, now: float) -> None:
        """Start the interval to the next turn; top-ups do not count."""
        if turn.rule != TOP_UP:
            self._cycle_at = now

    def ended(
        self, worker_id: str, dispatch_ids: Sequence[int], pass_time: float | None, *, now: float
    ) -> None:
        """Ready if this ended the dispatch last given; late and repeated ids release nothing."""
        super().ended(worker_id, dispatch_ids, pass_time, now=now)
        instance = self._instances.get(worker_id)
        if instance is None:
            return
        instance.fallback = False
        instance.ended_at = now
        if instance.awaited_id in dispatch_ids:
            instance.awaited_id = None
            instance.watchdog_at = inf

    def expire(self, *, now: float) -> Sequence[Expiry]:
        """Let silent instances fall back to fixed-interval dispatch until an EndForward comes."""
        expired = []
        for worker_id, instance in sorted(self._instances.items()):
            if instance.awaited_id is None or now < instance.watchdog_at:
                continue
            waited = now - instance.dispatched_at
            expired.append(Expiry(worker_id, instance.awaited_id, waited))
            instance.fallback = True
            instance.watchdog_at = inf
        return expired

    def _ready_at(self, load: InstanceLoad) -> float:
        """When it is ready as things stand: -inf for now, inf for not before an EndForward."""
        instance = self._instances[load.worker_id]
        if instance.awaited_id is None or load.task_depth == 0:
            return -inf
        # One turn round at the fixed interval, as if its pass had ended on time.
        return instance.dispatched_at + self._cycle_time if instance.fallback else inf

    # --- turns ------------------------------------------------------------------------

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Return top-ups, then the interval's turn, or idle instances if waiting wins nothing.

        Longest without a dispatch first; instances that the watchdog gave up come last.
        """
        ready = [load for load in loads if _can_take(load) and self._ready_at(load) <= now]
        ready.sort(key=self._rank)
        turns = [Turn(load.worker_id, TOP_UP) for load in ready if self._has_leftovers(load, now)]
        if now >= self._cycle_at + self.interval:
            turns += [Turn(load.worker_id, self._rule(load)) for load in ready]
        elif num_waiting == 1 or all(load.task_depth == 0 for load in loads):
            turns += [Turn(load.worker_id, "idle") for load in ready if load.task_depth == 0]
        return turns

    def _has_leftovers(self, load: InstanceLoad, now: float) -> bool:
        return load.queued_tokens > 0 and self._instances[load.worker_id].ended_at == now

    def _rank(self, load: InstanceLoad) -> tuple[bool, int, str]:
        instance = self._instances[load.worker_id]
        return instance.fallback, instance.turn, load.worker_id

    def _rule(self, load: InstanceLoad) -> str:
        if self._instances[load.worker_id].fallback:
            return "fixed-interval"
        return "quiescence" if load.task_depth == 0 else "end-forward"

    def wakeup(
        self, loads: Sequence[InstanceLoad], num_waiting: int, *, now: float
    ) -> float | None:
        """Return the next watchdog, or the next turn of an instance that is or will be ready."""
        times = [i.watchdog_at for i in self._instances.values() if i.awaited_id is not None]
        if num_waiting:
            due_at = self._cycle_at + self.interval
            ready_at = [self._ready_at(load) for load in loads if _can_take(load)]
            times += [turn_at for r in ready_at if (turn_at := max(r, due_at)) > now]
        earliest = min(times, default=inf)
        return earliest if earliest < inf else None


def _can_take(load: InstanceLoad) -> bool:
    return load.has_capacity and load.has_room


ANSWER = Answer("sbs", StaggeredBatch, "SBS, Algorithm 1 and section 4.1", SbsParams)
