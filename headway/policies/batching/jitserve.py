"""``jitserve``: least slack first, and who cannot be in time any more last (JITServe, NSDI '26).

JITServe (Zhang et al., arXiv 2504.20068) gives each request just enough of the engine to keep its
SLO, just in time, and begins with cautious estimates of lengths that relax as tokens come. As an
order that is the instant at which a request has to go on: its deadline less the time of the tokens
left. Deadlines are those of ``slo-deadline``, and of the last token where nobody reads. Its groups
of requests of like prompt length, which make passes cheaper, are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import between
from headway.policies.answer import Answer
from headway.policies.batching.lengths import prompt_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.batching.slo_deadline import SloDeadlineParams
from headway.request import Phase

_IN_TIME, _LATE = 0.0, 1.0


@dataclass(frozen=True, slots=True)
class JitserveParams(SloDeadlineParams):
    """As ``slo-deadline``; ``per_token`` is also what each output token left takes.

    ``ttlt``: seconds to the last token where nobody reads. ``caution``: the share by which a
    predicted length is raised before its first token. ``per_prompt_token``: seconds of one.
    """

    ttlt: float = between(0, 86_400, default=30.0)
    caution: float = between(0, 10, default=0.5)
    per_prompt_token: float = between(0, 60, default=1e-4)


class Jitserve(Batching):
    """Least slack first; blocks are taken by need alone."""

    reads_lengths = True

    def __init__(self, params: JitserveParams | None = None) -> None:
        self._params = params or JitserveParams()

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by whether it can be in time, then by the latest instant at which it goes on."""
        deadline, seconds = self._deadline(candidate)
        starts_at, until = deadline - seconds, candidate.attained_tokens + 1
        if now > starts_at:
            return Ranked((_LATE, starts_at, candidate.arrival_at), until)
        return Ranked((_IN_TIME, starts_at, candidate.arrival_at), until, starts_at)

    def _deadline(self, candidate: Candidate) -> tuple[float, float]:
        """Return when what its SLO is about is due, and the seconds of work until then."""
        params, arrival = self._params, candidate.arrival_at
        prompt = params.per_prompt_token * prompt_remaining(candidate)
        if candidate.is_read and candidate.phase is Phase.ANSWERING:
            due_at = candidate.in_hand_until
            return (due_at if due_at > -inf else arrival + params.ttft), 0.0
        if candidate.is_read and not candidate.reasons:
            return arrival + params.ttft, prompt
        if candidate.is_read:
            done = candidate.num_output_tokens
            return arrival + params.ttfat + params.per_token * done, prompt
        left = candidate.predicted_remaining or 0.0
        unknown = left / (left + candidate.num_output_tokens) if left else 0.0
        cautious = left * (1 + params.caution * unknown)
        return arrival + params.ttlt, prompt + params.per_token * cautious


ANSWER = Answer("jitserve", Jitserve, "JITServe: least slack, the late last", JitserveParams)
