"""What dispatch policies share that never wait: means that are shown, and nothing to time."""

from __future__ import annotations

from collections.abc import Sequence

from headway.policies.dispatch.protocol import Expiry, InstanceLoad, Turn
from headway.policies.dispatch.sliding import SlidingMean


class Untimed:
    """Only events matter; pass times and round trips are shown, not used."""

    interval = 0.0

    def __init__(self, window: int, default_pass_time: float) -> None:
        self._pass_times = SlidingMean(window, default_pass_time)
        self._latencies = SlidingMean(window, 0.0)

    @property
    def mean_pass_time(self) -> float:
        """T̄, seconds: shown, not used."""
        return self._pass_times.value

    @property
    def dispatch_latency(self) -> float:
        """L_net, seconds: shown, not used."""
        return self._latencies.value

    @property
    def num_bad_times(self) -> int:
        """Reported pass times that never entered T̄."""
        return self._pass_times.num_dropped

    def join(self, worker_id: str) -> None:
        """Its load says all."""

    def leave(self, worker_id: str) -> None:
        """Its load is gone."""

    def dispatched(self, turn: Turn, dispatch_id: int, *, now: float) -> None:
        """Its load will say so."""

    def passed(self, turn: Turn, *, now: float) -> None:
        """Nothing follows from it."""

    def recall(self, pass_time: float, latency: float) -> None:
        """T̄ and L_net go on from there."""
        self._pass_times.recall(pass_time)
        self._latencies.recall(latency)

    def acknowledged(self, round_trip: float) -> None:
        """One more value for L_net."""
        self._latencies.add(round_trip)

    def ended(
        self, worker_id: str, dispatch_ids: Sequence[int], pass_time: float | None, *, now: float
    ) -> None:
        """One more value for T̄."""
        if pass_time is not None:
            self._pass_times.add(pass_time)

    def expire(self, *, now: float) -> Sequence[Expiry]:
        """Nobody is waited for."""
        return ()

    def wakeup(
        self, loads: Sequence[InstanceLoad], num_waiting: int, *, now: float
    ) -> float | None:
        """Only events matter."""
        return None
