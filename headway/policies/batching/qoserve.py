"""``qoserve``: decoding first, then prompts by deadline and by what is left of them (QoServe).

QoServe (Goel et al., ASPLOS 2026; first as Niyama, arXiv 2503.22562) serves two kinds of requests:
an interactive one has a limit for its first token, another for its last, from which the time of its
output is taken off. Prompts are ordered by ``deadline + alpha · tokens left`` (hybrid
prioritisation, between earliest deadline first at ``alpha = 0`` and shortest prompt first). A
prompt that has no KV yet and could not be done in time any more goes behind all others (eager
relegation) and stays there. A pass has as many prompt tokens as the slack of who decodes allows
(dynamic chunking): by ``keeps_pace``, as under ``headway``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between
from headway.cost.costs import Constant, Costs
from headway.policies.answer import Answer
from headway.policies.batching.lengths import prompt_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.readers import CostReader
from headway.request import StreamKey

_DECODING, _IN_TIME, _RELEGATED = 0.0, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class QoserveParams(Bounded):
    """``ttft`` and ``ttfat``: limits of a first token, of chats and of who reasons, seconds.

    ``ttlt``: of the last token of a request that nobody reads, each of whose output tokens takes
    ``per_token``. ``alpha``: seconds that a prompt token left counts. ``relegates``: whether a
    prompt that is too late goes behind all others. ``tpot``: limit of a reader's token, seconds.
    """

    ttft: float = between(0, 86_400, default=1.0)
    ttfat: float = between(0, 86_400, default=2.0)
    ttlt: float = between(0, 86_400, default=30.0)
    per_token: float = between(0, 60, default=0.05)
    alpha: float = between(0, 60, default=0.008)
    relegates: bool = True
    tpot: float = between(0.001, 10, default=0.1)


class Qoserve(Batching, CostReader):
    """Hybrid prioritisation, eager relegation and chunks by slack; nobody is preempted."""

    reads_lengths = True

    def __init__(self, params: QoserveParams | None = None) -> None:
        self._params = params or QoserveParams()
        self.keeps_pace = self._params.tpot
        self._per_prompt: Constant | None = None
        self._relegated: set[StreamKey] = set()
        self._epoch = 0

    def learn(self, costs: Costs) -> None:
        """Take the time of a prompt token: who is too late follows from it."""
        seconds, name = costs.prefill_per_token, "prefill_per_token"
        per_prompt = Constant("prompt token", seconds, costs.source_of(name)) if seconds else None
        if per_prompt != self._per_prompt:
            self._per_prompt = per_prompt
            self._epoch += 1

    def constants(self) -> Sequence[Constant]:
        """Return the time of a prompt token; none while it is not known: nobody is too late."""
        return (self._per_prompt,) if self._per_prompt is not None else ()

    @property
    def epoch(self) -> int:
        """See ``Batching.epoch``."""
        return self._epoch

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by group, then seconds."""
        if candidate.decoding:
            return Ranked((_DECODING, candidate.arrival_at))
        left, deadline = prompt_remaining(candidate), self._deadline(candidate)
        until_at = self._too_late_at(candidate, deadline, left)
        if now >= until_at:
            self._relegated.add(candidate.key)
        group, until_at = (
            (_RELEGATED, inf) if candidate.key in self._relegated else (_IN_TIME, until_at)
        )
        rank = group, deadline + self._params.alpha * left
        return Ranked(rank, candidate.attained_tokens + 1, until_at)

    def _deadline(self, candidate: Candidate) -> float:
        """Return when the prompt must be done."""
        params = self._params
        if candidate.is_read:
            limit = params.ttfat if candidate.reasons else params.ttft
            return candidate.arrival_at + limit
        output = candidate.predicted_remaining or 0.0
        return candidate.arrival_at + params.ttlt - params.per_token * output

    def _too_late_at(self, candidate: Candidate, deadline: float, left: int) -> float:
        """Return the instant from which it is too late to begin; inf for one that has begun."""
        has_begun = candidate.running or candidate.num_output_tokens > 0
        if has_begun or self._per_prompt is None or not self._params.relegates:
            return inf
        return deadline - self._per_prompt.value * left

    def forget(self, key: StreamKey) -> None:
        """Forget that it was relegated."""
        self._relegated.discard(key)


ANSWER = Answer(
    "qoserve", Qoserve, "QoServe: hybrid order, eager relegation, dynamic chunks", QoserveParams
)
