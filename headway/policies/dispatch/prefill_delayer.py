"""``prefill-delayer``: prompts wait until there is one for every instance (SGLang's delayer).

Instances that meet in every pass (data-parallel attention) lose a pass wherever one of them
prefills alone. So requests are held until there are as many as instances that can take one, but
for no more than some passes. Where an instance's KV is nearly empty, holding would only idle it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headway.bounds import Bounded, between, over
from headway.policies.answer import Answer
from headway.policies.dispatch.immediate import Immediate, ImmediateParams
from headway.policies.dispatch.protocol import InstanceLoad, Turn, Waiting


@dataclass(frozen=True, slots=True)
class PrefillDelayerParams(Bounded):
    """``max_delay_passes``: mean passes that the oldest request is held at most.

    ``low_watermark``: an instance that uses less of its KV is given requests at once.
    """

    max_delay_passes: int = between(0, 100_000, default=30)
    low_watermark: float = between(0, 1, default=0.0)
    default_pass_time: float = over(0, default=0.05)
    window: int = between(1, 100_000, default=32)


class PrefillDelayer(Immediate):
    """Dispatch of requests in volleys, each to the instance with the fewest tokens to compute."""

    def __init__(self, params: PrefillDelayerParams | None = None) -> None:
        self._delayer = params or PrefillDelayerParams()
        rule = "least-tokens"
        window, pass_time = self._delayer.window, self._delayer.default_pass_time
        super().__init__(ImmediateParams(rule, pass_time, window))
        self._due_at: float | None = None
        self._num_released = 0

    def dispatched(self, turn: Turn, dispatch_id: int, *, now: float) -> None:
        """Count down the volley."""
        super().dispatched(turn, dispatch_id, now=now)
        self._num_released = max(0, self._num_released - 1)

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Return every instance with room once a volley is due, else those that hardly work."""
        able = [load for load in loads if load.has_room]
        oldest_at = min((each.arrival_at for each in waiting), default=now)
        delay = self._delayer.max_delay_passes * self.mean_pass_time
        due_at = oldest_at + delay
        self._num_released = min(self._num_released, num_waiting)  # others may have left
        if not self._num_released and able and (num_waiting >= len(able) or due_at <= now):
            self._num_released = num_waiting
        self._due_at = None if self._num_released or not num_waiting else due_at
        released = able if self._num_released else [each for each in able if self._is_idle(each)]
        return super().turns(released, num_waiting, now=now, waiting=waiting)

    def wakeup(
        self, loads: Sequence[InstanceLoad], num_waiting: int, *, now: float
    ) -> float | None:
        """Return when the oldest request has been held for long enough."""
        due_at = self._due_at
        return due_at if num_waiting and due_at is not None and due_at > now else None

    def _is_idle(self, load: InstanceLoad) -> bool:
        used = load.kv_tokens / max(1, load.kv_tokens + load.free_tokens)
        return used < self._delayer.low_watermark


ANSWER = Answer("prefill-delayer", PrefillDelayer, "SGLang's prefill delayer", PrefillDelayerParams)
