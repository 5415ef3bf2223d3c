"""The work of a worker's passes, added up until it is reported; velocities derive from it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from headway.cost.pass_time import Share as Work
from headway.forward_pass import PassResult
from headway.messages import PassWork


class WorkMeter:
    """Sums over passes with prompt tokens and, apart, over passes that only decode.

    The units run in lock-step, so the greatest value of each term counts.
    """

    def __init__(self) -> None:
        self._sums: dict[bool, PassWork] = {}
        self.is_on = False
        """True if the scheduler reads it."""

    def ran(self, shares: Sequence[Work], result: PassResult) -> None:
        """Add a pass that has ended, unless its time is zero or unknown."""
        pass_time = result.pass_time
        if not (self.is_on and shares and isfinite(pass_time) and pass_time > 0):
            return
        num_steps = result.num_steps
        share = Work(*(max(term) for term in zip(*shares, strict=True)))
        # in each step after the first the KV has grown by a token a request
        kv_tokens = num_steps * share.kv_tokens + share.batch * (num_steps * (num_steps - 1) // 2)
        prefills = share.prefill_tokens > 0
        self._sums[prefills] = self._sums.get(prefills, PassWork()).plus(
            PassWork(
                num_steps,
                num_steps * pass_time,
                num_steps * share.prefill_tokens,
                num_steps * share.prefill_context,
                num_steps * share.batch,
                kv_tokens,
            )
        )

    def take(self) -> tuple[PassWork, ...]:
        """Return and clear what was added since the last call."""
        work = tuple(sums for _, sums in sorted(self._sums.items()))
        self._sums.clear()
        return work
