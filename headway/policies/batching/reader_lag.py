"""How far readers lag without noticing (ℓ), their share of the work (ρ), and the wait (W).

Work is conserved. Let W be the wait under first come, first served, and ρ the share of the work
that has readers. Readers who are served just in time lag ℓ behind where that order would have them.
All others then wait ``(W - ρℓ) / (1 - ρ)``: no longer than W while ``W <= ℓ``.
"""

from __future__ import annotations

from headway.policies.batching.protocol import Candidate
from headway.policies.batching.reader_clock import ReaderParams
from headway.request import Phase

NUM_ANSWERS = 10
"""Answers with readers from which on ℓ is measured."""
_MEMORY = 0.995  # of what is known of requests that ended before: two hundred count
_DRIFT = 1.25


class ReaderLag:
    """ℓ, ρ and W of the requests that have ended here lately."""

    def __init__(self, params: ReaderParams) -> None:
        self._pace = params.reader_pace
        self._in_hand = (params.critical_slack + params.resume_slack) / 2
        self._num_answers = 0
        self._tokens = self._squares = 0.0
        self._work = self._waits = 0.0
        self.seconds: float | None = None
        """ℓ as last adopted: when it had drifted by a quarter; None before so many answers."""

    def ended(self, candidate: Candidate, now: float) -> bool:
        """Count a request that has drawn its last token; return whether ℓ was adopted anew."""
        num_tokens = candidate.num_output_tokens
        is_read = candidate.is_read and candidate.phase is Phase.ANSWERING
        wait = max(0.0, now - candidate.arrival_at - candidate.served)
        num_read = candidate.num_phase_tokens if is_read else 0
        # of an answer that is read the first token does not lag, and the last one by all of it
        self._waits = _MEMORY * self._waits + wait * (num_tokens - num_read / 2)
        self._work = _MEMORY * self._work + num_tokens
        self._tokens = _MEMORY * self._tokens + num_read
        self._squares = _MEMORY * self._squares + num_read * num_read
        self._num_answers += is_read
        return self._num_answers >= NUM_ANSWERS and self._adopt()

    @property
    def wait(self) -> float:
        """W: mean seconds of a token's wait, beside the passes of its request."""
        return self._waits / self._work if self._work else 0.0

    @property
    def readers_share(self) -> float:
        """ρ: the share of the output tokens that readers read as they come."""
        return self._tokens / self._work if self._work else 0.0

    def _adopt(self) -> bool:
        found = max(0.0, self._pace * self._squares / (2 * self._tokens) - self._in_hand)
        known = self.seconds
        if known is not None and known / _DRIFT <= found <= known * _DRIFT:
            return False
        self.seconds = found
        return True
