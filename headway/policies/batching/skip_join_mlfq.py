"""``skip-join-mlfq``: a multi-level feedback queue that knows the prompt (FastServe).

Level i has a quantum of ``quantum · 2^i`` tokens. A new request joins the first level whose quantum
holds its prompt. It thereby skips the levels that it would leave at once. A request that has used
its quantum goes down a level. One that has waited too long returns to the first level.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between, over
from headway.policies.answer import Answer
from headway.policies.batching.boost import prompt_work
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.request import StreamKey


@dataclass(frozen=True, slots=True)
class SkipJoinMlfqParams(Bounded):
    """``quantum`` of the first level, tokens; ``num_levels``; ``patience``, seconds of waiting."""

    quantum: int = between(1, 1_000_000, default=64)
    num_levels: int = between(1, 40, default=12)
    patience: float = over(0, default=30.0)


@dataclass(slots=True)
class _Place:
    """A request's level, the attained tokens with which it came there, and its wait."""

    level: int
    entered_at_tokens: int
    waiting_since: float
    was_running: bool = False


class SkipJoinMlfq(Batching):
    """Lowest level first, by arrival in a level; a higher level's request yields to a lower's."""

    preempts = True

    def __init__(self, params: SkipJoinMlfqParams | None = None) -> None:
        self._params = params or SkipJoinMlfqParams()
        self._places: dict[StreamKey, _Place] = {}

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by level, then arrival, until the quantum is used or the wait too long."""
        place = self._places.get(candidate.key)
        if place is None:
            place = self._places[candidate.key] = self._join(candidate, now)
        if place.was_running and not candidate.running:
            place.waiting_since = now
        place.was_running = candidate.running
        attained = candidate.attained_tokens
        due_at = place.waiting_since + self._params.patience
        if not candidate.running and place.level > 0 and now >= due_at:
            place.level, place.entered_at_tokens = 0, attained
        self._fall(place, attained)
        used_at = place.entered_at_tokens + self._quantum(place.level)
        is_last = place.level == self._params.num_levels - 1
        return Ranked(
            (place.level, candidate.arrival_at),
            inf if is_last else used_at,
            due_at if not candidate.running and place.level > 0 else inf,
        )

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Return whether the victim is on a lower level."""
        return self._places[for_.key].level < self._places[victim.key].level

    def forget(self, key: StreamKey) -> None:
        """Forget its level."""
        self._places.pop(key, None)

    def _join(self, candidate: Candidate, now: float) -> _Place:
        level, last = 0, self._params.num_levels - 1
        while level < last and self._quantum(level) < prompt_work(candidate):
            level += 1
        return _Place(level, 0, now)

    def _fall(self, place: _Place, attained: int) -> None:
        while place.level < self._params.num_levels - 1:
            used_at = place.entered_at_tokens + self._quantum(place.level)
            if attained < used_at:
                return
            place.level, place.entered_at_tokens = place.level + 1, used_at

    def _quantum(self, level: int) -> int:
        return int(self._params.quantum) << level


ANSWER = Answer("skip-join-mlfq", SkipJoinMlfq, "FastServe", SkipJoinMlfqParams)
