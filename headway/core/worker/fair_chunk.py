"""The prompt tokens of a pass, divided between the tenants whose prompts a DP unit has.

Who was given least goes first, up to what the next one was given, and so on. So a short prompt is
computed at once beside a long one of another tenant, and whoever has used less than its share of
the unit may have a burst of prompts computed ahead of a flood.

A prompt that arrives waits for the pass in flight, and then for its own. So while other tenants
come and go, a flood has shorter passes: it fills a part of them, and what comes beside it is
computed first. A tenant floods if the scheduler says so, who sees all that waits, or if it has a
prompt or a queue of more than a chunk. Tenants that all do, and nobody else, have whole passes.

A token whose log probabilities are asked for counts as the tokens that take as long.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush
from math import ceil, inf
from typing import NamedTuple

from headway.core.token_counters import CREDIT, TokenCounters
from headway.core.worker.lifecycle import Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.unit import WorkerUnit
from headway.core.worker.waiting import LEAST_WEIGHT, is_flood, name_of, weight_of

LEAD = 4.0
"""Chunks that a tenant may be given more than a flood, by bursts that go ahead of it."""
_NUM_PARTS = 64
"""A chunk is given away in so many parts."""
_SHORT = 4
"""Floods fill passes up to the chunk over this while others come and go, half of it beside them."""
RECENT = 128
"""Passes for which a tenant counts as coming and going."""


class _Prompts(NamedTuple):
    """Tokens that a tenant's prompts lack, its weight, and whether others do not wait for it."""

    num_tokens: int
    weight: float
    floods: bool


_NONE = _Prompts(0, LEAST_WEIGHT, False)


class FairChunk:
    """Tokens computed for each tenant on one unit, and what each may have of the next chunk.

    A class that yields counts apart from its tenant's other requests, with its floor.
    """

    def __init__(self) -> None:
        self._chunk_tokens = 1
        self._counters = TokenCounters()
        self._prompts: dict[str, _Prompts] = {}
        self._left: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        """Number of the last pass that computed a prompt, by tenant."""
        self._num_passes = 0
        self._most = 1
        self._score_weight = 1.0
        self._spare = 0.0
        """Prompt tokens that the pass may still have."""

    def divide(self, unit: WorkerUnit, most: float = inf, score_weight: float = 1.0) -> bool:
        """Divide the next chunk between the prompts of a unit; False if nobody has a name.

        ``most``: tokens of prompts that the pass has time for. ``score_weight``: tokens as which
        one with log probabilities counts.
        """
        self._score_weight = score_weight
        if unit.tenants.keys() <= {""}:
            return False
        self._chunk_tokens = unit.chunk_tokens
        self._counters.credit = CREDIT * unit.chunk_tokens
        before, self._prompts = self._prompts, self._waiting(unit)
        for name, sequence in running_prompts(unit):
            self._prompts[name] = self._with(self._prompts.get(name, _NONE), sequence)
        for name in before:
            if name not in self._prompts:
                self._counters.leave(name, self._prompts)
        for name in self._prompts:
            if name not in before:
                others = (each for each in self._prompts if each in before)
                self._counters.join(name, map(self._counters.of, others))
            if unit.asks_much(name.partition("\n")[0]):
                small = (n for n in self._prompts if not unit.asks_much(n.partition("\n")[0]))
                self._counters.withdraw(name, small)
        self._num_passes += 1
        self._most = int(min(self._chunk_tokens, most))
        self._seen.update(dict.fromkeys(self._prompts, self._num_passes))
        self._left = self._divided()
        self._spare = float(sum(self._left.values()))
        return True

    def _waiting(self, unit: WorkerUnit) -> dict[str, _Prompts]:
        """Return the prompts that wait, by name."""
        return {
            name: _Prompts(
                (num_tokens := each.num_tokens + ceil((self._score_weight - 1) * each.num_scored)),
                max(each.weights),
                each.num_floods > 0 or num_tokens > self._chunk_tokens,
            )
            for name, each in unit.waiting.by_name.items()
        }

    def _with(self, prompts: _Prompts, sequence: Sequence) -> _Prompts:
        """Return a tenant's prompts with one more."""
        chunk = self._chunk_tokens
        asked = prompts.num_tokens + ceil(sequence.num_queued * self._weight(sequence))
        floods = prompts.floods or asked > chunk or is_flood(sequence, chunk)
        return _Prompts(asked, max(prompts.weight, weight_of(sequence)), floods)

    def take(self, sequence: Sequence, most: int) -> int:
        """Take a request's tokens from its tenant's part, at most so many; return how many."""
        name = name_of(sequence)
        left, weight = self._left.get(name, 0), self._weight(sequence)
        taken = min(most, ceil(left / weight), sequence.num_remaining)
        self._left[name] = max(0, left - ceil(taken * weight))
        return taken

    def spare_for(self, sequence: Sequence) -> int:
        """Return how many of a request's tokens the pass may still have."""
        return int(self._spare / self._weight(sequence))

    def _weight(self, sequence: Sequence) -> float:
        return self._score_weight if sequence.is_scored else 1.0

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens that the pass computes for a request."""
        counted = num_tokens * self._weight(sequence)
        self._spare -= counted
        self._counters.charge(name_of(sequence), counted, weight_of(sequence))

    def _divided(self) -> dict[str, int]:
        """Return each tenant's part of the chunk."""
        given = self._give(list(self._prompts), self._most)
        floods = [n for n in given if self._prompts[n].floods or self._is_ahead(n)]
        floods = floods or [n for n in given if given[n] < self._prompts[n].num_tokens]
        if not floods or not self._others_come(floods):
            return given
        least = len(floods) * max(1, self._chunk_tokens // _NUM_PARTS)
        others = [name for name in given if name not in floods]
        given = self._give(others, max(1, self._most - least))
        num_others = sum(given.values())
        short = self._most // _SHORT // (2 if num_others else 1)
        most = max(short - num_others, least)
        return given | self._give(floods, most)

    def _is_ahead(self, name: str) -> bool:
        """Return whether a tenant's bursts have had so much that it waits its turn."""
        least = min(map(self._counters.of, self._prompts))
        return self._counters.of(name) > least + LEAD * self._chunk_tokens

    def _others_come(self, floods: Container[str]) -> bool:
        """Return whether tenants beside the floods have had prompts here of late."""
        since = self._num_passes - RECENT
        self._seen = {name: seen for name, seen in self._seen.items() if seen > since}
        return any(name not in floods for name in self._seen)

    def _give(self, names: list[str], num_tokens: int) -> dict[str, int]:
        """Give so many tokens away, from the least counter upwards; all, if they are wanted."""
        left, part = num_tokens, max(1, self._chunk_tokens // _NUM_PARTS)
        given = dict.fromkeys(names, 0)
        heap = [(self._counters.of(name), name) for name in names]
        heapify(heap)
        while left and heap:
            counter, name = heappop(heap)
            asked, weight, _ = self._prompts[name]
            tokens = min(part if heap else left, left, asked - given[name])
            given[name] += tokens
            left -= tokens
            if given[name] < asked:
                heappush(heap, (counter + tokens / weight, name))
        return given


def running_prompts(unit: WorkerUnit) -> Iterator[tuple[str, Sequence]]:
    """Yield a unit's requests with blocks that lack prompt tokens, and whom they count for."""
    for sequence in list(unit.prompts.values()):
        if sequence.stage is Stage.RUNNING:
            if sequence.decoding:
                del unit.prompts[sequence.key]
            else:
                yield name_of(sequence), sequence
