"""The faster way for preempted KV: waiting in host memory, or being computed again."""

from __future__ import annotations

from headway.forward_pass import ForwardPass, PassResult

_KEPT = 0.9
"""Weight that earlier measurements keep at every new one."""

_HOPE = 0.98
"""Factor on the swap's time whenever it loses, so that it is tried again eventually."""


class _Rate:
    """Seconds per token: decaying sums, so that long measurements weigh more."""

    def __init__(self) -> None:
        self.seconds = self._num_tokens = 0.0

    @property
    def per_token(self) -> float | None:
        return self.seconds / self._num_tokens if self._num_tokens else None

    def add(self, seconds: float, num_tokens: int) -> None:
        self.seconds = _KEPT * self.seconds + seconds
        self._num_tokens = _KEPT * self._num_tokens + num_tokens


class MemoryRates:
    """Smoothed seconds per token of prefill and of swaps, as the backend measured them.

    While one of them is unknown KV is swapped, which is safer and measures it.
    """

    def __init__(self) -> None:
        self._prefill = _Rate()
        self._swap = _Rate()

    @property
    def prefill_per_token(self) -> float | None:
        """Seconds; None if unknown."""
        return self._prefill.per_token

    @property
    def swap_per_token(self) -> float | None:
        """Seconds for one way; None if unknown."""
        return self._swap.per_token

    def ran(self, forward_pass: ForwardPass, result: PassResult) -> None:
        """Measure a pass that has ended: its swaps, and its prefill if it is mostly that."""
        swaps = (*forward_pass.swapped_out, *forward_pass.swapped_in)
        if swaps:
            if result.swap_time > 0.0:
                self._swap.add(result.swap_time, sum(swap.num_tokens for swap in swaps))
            return
        num_tokens = sum(len(item.token_ids) for item in forward_pass.items)
        if num_tokens > 2 * len(forward_pass.items):
            self._prefill.add(result.pass_time, num_tokens)

    def swap_is_sooner(self, num_tokens: int, num_kept: int) -> bool:
        """Return whether swapping ``num_tokens`` both ways beats computing all but ``num_kept``."""
        prefill, swap = self.prefill_per_token, self.swap_per_token
        if prefill is None or swap is None:
            return True
        if 2 * num_tokens * swap <= (num_tokens - num_kept) * prefill:
            return True
        self._swap.seconds *= _HOPE
        return False
