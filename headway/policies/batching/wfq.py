"""``wfq``: fair queueing over classes, by tokens (start-time fair queueing; VTC's idea).

Every class has a share of the tokens by its weight, however many requests it sends. A request's
start tag is its class's last finish tag, or the virtual time if that is later. Its finish tag adds
its tokens over the weight. The least start tag enters first, and virtual time is the greatest
start tag that has entered. Lengths that nobody predicts count as ``output_tokens``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from headway.bounds import Bounded, between, over
from headway.policies.answer import Answer
from headway.policies.batching.boost import prompt_work
from headway.policies.batching.lengths import predicted_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.request import StreamKey

_CHAT, _REASONING, _UNREAD = "chat", "reasoning", "unread"


@dataclass(frozen=True, slots=True)
class WfqParams(Bounded):
    """Weights of the classes, and tokens: ``output_weight`` prompt tokens make an output token.

    VTC counts an output token twice.
    """

    chat: float = over(0, default=1.0)
    reasoning: float = over(0, default=1.0)
    unread: float = over(0, default=1.0)
    output_weight: float = between(0, 1000, default=2.0)
    output_tokens: int = between(0, 1_000_000, default=256)


class Wfq(Batching):
    """Running requests first, then the waiting ones with the least start tag."""

    reads_lengths = True

    def __init__(self, params: WfqParams | None = None) -> None:
        self._params = params or WfqParams()
        self._finish: dict[str, float] = {}
        self._starts: dict[StreamKey, float] = {}
        self._virtual = 0.0

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank running requests first, then by start tag, then by arrival."""
        start = self._starts.get(candidate.key)
        if start is None:
            start = self._starts[candidate.key] = self._join(candidate)
        if candidate.running:
            self._virtual = max(self._virtual, start)
        return Ranked((not candidate.running, start, candidate.arrival_at))

    def forget(self, key: StreamKey) -> None:
        """Forget its tag."""
        self._starts.pop(key, None)

    def _join(self, candidate: Candidate) -> float:
        """Return the start tag of a new request, and move its class's last finish tag."""
        params, name = self._params, _class_of(candidate)
        predicted = predicted_remaining(candidate)
        num_output = params.output_tokens if isinf(predicted) else predicted
        cost = prompt_work(candidate) + params.output_weight * num_output
        start = max(self._virtual, self._finish.get(name, 0.0))
        self._finish[name] = start + max(1.0, cost) / getattr(params, name)
        return start


def _class_of(candidate: Candidate) -> str:
    if not candidate.is_read:
        return _UNREAD
    return _REASONING if candidate.reasons else _CHAT


ANSWER = Answer("wfq", Wfq, "start-time fair queueing, Goyal et al. 1996; VTC, OSDI '24", WfqParams)
