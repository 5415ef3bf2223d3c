"""The faster way for preempted KV: waiting in host memory, or being computed again.

Its rates are measured here, and beside them that of the link to other workers, and that of the
log probabilities of prompts.
"""

from __future__ import annotations

from headway.cost.costs import Costs
from headway.forward_pass import ForwardPass, PassResult

_KEPT = 0.9
"""Weight that earlier measurements keep at every new one."""

_HOPE = 0.98
"""Factor on the swap's time whenever it loses, so that it is tried again eventually."""

_SAVING = 0.25
"""Share of a pass during which cached blocks are copied to host memory: few enough that the copies
have ended before the pass, and more than a pass computes wherever reading back is worth it."""


class _Rate:
    """Seconds per token or byte: decaying sums, so that long measurements weigh more."""

    def __init__(self) -> None:
        self.seconds = self._number = 0.0

    @property
    def each(self) -> float | None:
        return self.seconds / self._number if self._number else None

    def add(self, seconds: float, number: int) -> None:
        self.seconds = _KEPT * self.seconds + seconds
        self._number = _KEPT * self._number + number


class MemoryRates:
    """Smoothed seconds per token of prefill and of swaps, and per byte of the link, as measured.

    While one of them is unknown KV is swapped, which is safer and measures it.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        """``costs``: a profile's, which stand for prefixes until there are measured ones."""
        self._known = costs or Costs()
        self._prefill = _Rate()
        self._swap = _Rate()
        self._link = _Rate()
        self._score = _Rate()
        self._pass_time = 0.0

    @property
    def prefill_per_token(self) -> float | None:
        """Seconds; None if unknown."""
        return self._prefill.each

    @property
    def swap_per_token(self) -> float | None:
        """Seconds for one way; None if unknown."""
        return self._swap.each

    @property
    def link_per_byte(self) -> float | None:
        """Seconds for a byte of KV to another worker; None if unknown."""
        return self._link.each

    @property
    def score_per_token(self) -> float | None:
        """Seconds for the log probabilities of a token of a prompt; None if unknown."""
        return self._score.each

    def sent(self, num_bytes: int, seconds: float) -> None:
        """Measure a transfer to another worker; one that nobody timed says nothing."""
        if num_bytes > 0 and seconds > 0.0:
            self._link.add(seconds, num_bytes)

    def ran(self, forward_pass: ForwardPass, result: PassResult) -> None:
        """Measure a pass that has ended: its copies, and its prefill if it is mostly that."""
        self._pass_time = result.pass_time
        if result.score_time > 0.0:
            num_scored = sum(item.num_scored for item in forward_pass.items)
            self._score.add(result.score_time, num_scored)
        swaps = (*forward_pass.swapped_out, *forward_pass.swapped_in)
        copies = (*swaps, *forward_pass.saved)
        if copies and result.swap_time > 0.0:
            self._swap.add(result.swap_time, sum(copy.num_tokens for copy in copies))
        if swaps:
            return
        num_tokens = sum(len(item.token_ids) for item in forward_pass.items)
        if num_tokens > 2 * len(forward_pass.items):
            self._prefill.add(result.pass_time - result.score_time, num_tokens)

    def swap_is_sooner(self, num_tokens: int, num_kept: int) -> bool:
        """Return whether swapping ``num_tokens`` both ways beats computing all but ``num_kept``."""
        prefill, swap = self.prefill_per_token, self.swap_per_token
        if prefill is None or swap is None:
            return True
        if 2 * num_tokens * swap <= (num_tokens - num_kept) * prefill:
            return True
        self._swap.seconds *= _HOPE
        return False

    # --- cached prefixes ----------------------------------------------------------------

    @property
    def is_read_sooner(self) -> bool:
        """True if a prefix is sooner back from host memory than computed."""
        prefill, swap = self.prefill_per_token or self._known.prefill_per_token, self._copy
        return not prefill or not swap or swap <= prefill

    @property
    def num_savable_tokens(self) -> int:
        """Tokens whose KV goes to host memory during a pass like the last without slowing it."""
        return int(_SAVING * self._pass_time / self._copy) if self._copy else 0

    @property
    def _copy(self) -> float:
        """Seconds per token, one way; 0 if unknown."""
        return self.swap_per_token or self._known.swap_per_token / 2
