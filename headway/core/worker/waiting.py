"""The requests of a DP unit that wait for blocks, as sums that are kept up.

Nothing of a request changes while it waits. So thousands of them cost a pass no more than one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from headway.core.worker.sequence import Sequence
from headway.request import StreamKey

LEAST_WEIGHT = 0.01
_K = TypeVar("_K", float, int)


class _Part(NamedTuple):
    """A request's part of the sums."""

    name: str
    weight: float
    num_tokens: int
    num_known: int
    """Tokens whose KV it need not compute."""
    floods: bool
    decoding: bool
    num_scored: int
    """Tokens whose log probabilities are asked for."""
    host_tokens: int
    lost_tokens: int


@dataclass(slots=True)
class WaitingPrompts:
    """The prompts that wait of those who count together (``name_of``)."""

    num_tokens: int = 0
    num_scored: int = 0
    """Tokens of ``num_tokens`` whose log probabilities are asked for."""
    num_floods: int = 0
    """Requests that others do not wait for."""
    weights: Counter[float] = field(default_factory=Counter)


class WaitingRequests:
    """Sums over the requests that wait: ``num_queued``, KV in host memory, and whose they are.

    ``num_decoding``: those that lack no prompt token, for their KV is in host memory.
    ``by_name``: the others' prompts. ``chunk_tokens``: of the unit's pass, as its role has it.
    """

    def __init__(self) -> None:
        self.num_decoding = self.queued_tokens = self.host_tokens = self.lost_tokens = 0
        self.by_name: dict[str, WaitingPrompts] = {}
        self.chunk_tokens = 1
        self._known: Counter[int] = Counter()
        self._parts: dict[StreamKey, _Part] = {}

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def longest_known(self) -> int:
        """The most tokens that a prompt has computed or cached; 0 for no prompt."""
        return max(self._known, default=0)

    def add(self, sequence: Sequence) -> None:
        """Count a request that waits, or count it anew."""
        self.discard(sequence.key)
        kv = sequence.kv
        part = self._parts[sequence.key] = _Part(
            name_of(sequence),
            weight_of(sequence),
            sequence.num_queued,
            max(kv.num_computed, kv.num_hit_tokens),
            is_flood(sequence, self.chunk_tokens),
            sequence.decoding,
            sequence.num_queued if sequence.is_scored else 0,
            kv.num_computed,
            0 if sequence.decoding else sequence.num_lost,
        )
        self._count(part, 1)
        if not part.decoding:
            prompts = self.by_name.setdefault(part.name, WaitingPrompts())
            prompts.num_tokens += part.num_tokens
            prompts.num_scored += part.num_scored
            prompts.num_floods += part.floods
            prompts.weights[part.weight] += 1
            self._known[part.num_known] += 1

    def discard(self, key: StreamKey) -> bool:
        """Count a request no more; return whether it waited."""
        part = self._parts.pop(key, None)
        if part is None:
            return False
        self._count(part, -1)
        if not part.decoding:
            prompts = self.by_name[part.name]
            prompts.num_tokens -= part.num_tokens
            prompts.num_scored -= part.num_scored
            prompts.num_floods -= part.floods
            _take(prompts.weights, part.weight)
            _take(self._known, part.num_known)
            if not prompts.weights:
                del self.by_name[part.name]
        return True

    def _count(self, part: _Part, sign: int) -> None:
        self.host_tokens += sign * part.host_tokens
        self.lost_tokens += sign * part.lost_tokens
        if part.decoding:
            self.num_decoding += sign
        else:
            self.queued_tokens += sign * part.num_tokens


def _take(counts: Counter[_K], key: _K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def name_of(sequence: Sequence) -> str:
    """Return whom a prompt counts for: its tenant, and its class if that yields."""
    standing = sequence.request.standing
    service = standing.service
    if service is None or not service.yields:
        return standing.tenant
    return f"{standing.tenant}\n{service.name}"


def weight_of(sequence: Sequence) -> float:
    """Return its share of the prompt tokens, relative to others'."""
    standing = sequence.request.standing
    service = standing.service
    floor = service.floor if service is not None and service.yields else 1.0
    return max(LEAST_WEIGHT, standing.share * floor)


def is_flood(sequence: Sequence, chunk_tokens: int) -> bool:
    """Return whether others do not wait for a prompt: it is long, or its tenant floods."""
    standing = sequence.request.standing
    is_long = sequence.num_tokens - sequence.kv.num_hit_tokens > chunk_tokens
    return standing.floods or standing.yields or is_long
