"""How far readers lag without noticing (ℓ), their share of the work (ρ), and the wait (W).

Work is conserved. Let W be the wait under first come, first served, and ρ the share of the work
that has readers. Readers who are served just in time lag ℓ behind where that order would have them,
in the mean over their work. All others then wait ``(W - ρℓ) / (1 - ρ)``: no longer than W while
``W <= ℓ``. Only an answer's tokens lag. The prompt before them is work, too, and is done at once.
"""

from __future__ import annotations

from headway.cost.costs import Costs
from headway.policies.batching.boost import prompt_work
from headway.policies.batching.protocol import Candidate
from headway.policies.batching.reader_clock import ReaderParams
from headway.request import Phase

NUM_ANSWERS = 10
"""Answers with readers from which on ℓ is measured."""
_MEMORY = 0.995  # of what is known of requests that ended before: two hundred count
_DRIFT = 1.25


class ReaderLag:
    """ℓ, ρ and W of the requests that have ended here lately.

    Work is counted in output tokens. A prompt token counts for what it costs beside one, or nothing
    while that is unknown.
    """

    def __init__(self, params: ReaderParams) -> None:
        self._pace = params.reader_pace
        self._in_hand = (params.critical_slack + params.resume_slack) / 2
        self._num_answers = 0
        self._work = self._waits = 0.0
        self._readers = self._answers = self._squares = 0.0
        self._per_prompt = 0.0  # output tokens that a prompt token is worth
        self.seconds: float | None = None
        """ℓ as last adopted: when it had drifted by a quarter; None before so many answers."""

    def learn(self, costs: Costs) -> None:
        """Weigh tokens of requests that end from now on by these costs."""
        if costs.prefill_per_token and costs.decode_per_token:
            self._per_prompt = costs.prefill_per_token / costs.decode_per_token

    def ended(self, candidate: Candidate, now: float) -> bool:
        """Count a request that has drawn its last token; return whether ℓ was adopted anew."""
        num_tokens = candidate.num_output_tokens
        is_read = candidate.is_read and candidate.phase is Phase.ANSWERING
        wait = max(0.0, now - candidate.arrival_at - candidate.served)
        num_read = candidate.num_phase_tokens if is_read else 0
        prompt = self._per_prompt * prompt_work(candidate)
        # of an answer that is read the first token does not lag, and the last one by all of it
        self._waits = _MEMORY * self._waits + wait * (prompt + num_tokens - num_read / 2)
        self._work = _MEMORY * self._work + prompt + num_tokens
        self._answers = _MEMORY * self._answers + num_read
        opens = num_read > 0 and num_read == num_tokens  # a reader waited for its first token
        self._readers = _MEMORY * self._readers + num_read + (prompt if opens else 0.0)
        self._squares = _MEMORY * self._squares + num_read * num_read
        self._num_answers += num_read > 0
        return self._num_answers >= NUM_ANSWERS and self._adopt()

    @property
    def wait(self) -> float:
        """W: mean seconds of the wait, over all work, beside the passes of its request."""
        return self._waits / self._work if self._work else 0.0

    @property
    def readers_share(self) -> float:
        """ρ: the share of the work that is for readers who wait or read."""
        return self._readers / self._work if self._work else 0.0

    def _adopt(self) -> bool:
        lag = max(0.0, self._pace * self._squares / (2 * self._answers) - self._in_hand)
        lag *= self._answers / self._readers
        known = self.seconds
        if known is not None and known / _DRIFT <= lag <= known * _DRIFT:
            return False
        self.seconds = lag
        return True
