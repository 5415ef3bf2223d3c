"""``split``: the shortest remaining first, but for one place for the large (SPLIT, 2026).

SPLIT (Li, Harchol-Balter, Scheller-Wolf, arXiv 2605.13749) shows that on several servers a strict
preference for short jobs is not best for the tail: a little sympathy for large jobs is needed. A
batch's places are the servers here. The oldest of the large requests goes first, and all others
follow by remaining tokens. What the paper's abstract leaves open, who is large and how many places
they have, is settled so. A length that is not known is what has been served (the paper's case
without job sizes).
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.lengths import known_remaining, prompt_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.request import StreamKey

_FAVOURED, _OTHER = 0.0, 1.0


@dataclass(frozen=True, slots=True)
class SplitParams(Bounded):
    """``large_tokens``: tokens, served and to come, from which a request is large."""

    large_tokens: int = between(1, 1 << 20, default=1000)


class Split(Batching):
    """The oldest large request, then the fewest tokens left."""

    preempts = True
    improves = True
    reads_lengths = True

    def __init__(self, params: SplitParams | None = None) -> None:
        self._large_tokens = (params or SplitParams()).large_tokens
        self._large: dict[StreamKey, float] = {}
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """See ``Batching.epoch``: it changes with the oldest large request."""
        return self._epoch

    @property
    def _favoured(self) -> StreamKey | None:
        return min(self._large, key=lambda key: (self._large[key], key), default=None)

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank the favoured one first, then by remaining tokens and arrival."""
        left = prompt_remaining(candidate) + known_remaining(candidate)
        done, until = candidate.attained_tokens, candidate.attained_tokens + 1
        is_large = (done if left == float("inf") else done + left) >= self._large_tokens
        if is_large and candidate.key not in self._large:
            before = self._favoured
            self._large[candidate.key] = candidate.arrival_at
            self._epoch += self._favoured != before
        if candidate.key == self._favoured:
            return Ranked((_FAVOURED, 0.0, candidate.arrival_at), until)
        return Ranked((_OTHER, left, candidate.arrival_at), until)

    def forget(self, key: StreamKey) -> None:
        """Forget a large one: the next is favoured."""
        was_favoured = key == self._favoured
        if self._large.pop(key, None) is not None:
            self._epoch += was_favoured


ANSWER = Answer("split", Split, "SPLIT: shortest remaining, one place for the large", SplitParams)
