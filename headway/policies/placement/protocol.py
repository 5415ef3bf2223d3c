"""The input and the output of a placement policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from headway.blocks import blocks_for
from headway.cluster import UnitId
from headway.cost.velocity import takes_decode
from headway.policies.packing.protocol import Packable
from headway.policies.placement.ahead import LoadAhead


class Placeable(Packable, Protocol):
    """A prefilled request, as a placement policy sees it."""

    @property
    def num_tokens(self) -> int:
        """len(r): prompt and output tokens so far."""

    @property
    def num_growth_tokens(self) -> int:
        """Tokens that must find room beside them."""

    @property
    def predicted_remaining(self) -> float:
        """Output tokens still to come, as predicted when its prompt was done; 0 if unknown."""

    @property
    def bucket(self) -> int:
        """The bucket of its prompt and predicted output (``headway.cost.buckets``)."""

    @property
    def barred(self) -> Collection[UnitId]:
        """Units that this request must not go to now."""


R = TypeVar("R", bound=Placeable)


@dataclass(slots=True)
class DecodeUnit:
    """A DP unit while a batch is placed: ``num_requests`` is B, ``kv_tokens`` is K.

    ``waiting_tokens``: of preempted requests, in host memory or to be computed again.
    ``num_reasoning`` is PASCAL's r_i, ``num_fresh_answering``
    a_i (answers within their first quantum), ``is_on_schedule`` t_i. ``bucket_counts``: requests
    by bucket, as many as there are buckets, or none. ``reserved_tokens``: room that a convertible
    decoder keeps for prompts (TokenScale, equation 6). ``ahead``: its predicted load, for policies
    that read it.
    """

    unit: UnitId
    num_requests: int
    kv_tokens: int
    num_free_blocks: int
    num_blocks: int
    block_size: int
    waiting_tokens: int = 0
    num_reasoning: int = 0
    num_fresh_answering: int = 0
    is_on_schedule: bool = True
    bucket_counts: list[int] = field(default_factory=list)
    is_convertible: bool = False
    reserved_tokens: float = 0.0
    ahead: LoadAhead | None = None

    def count_of(self, bucket: int) -> int:
        """Requests of a bucket."""
        return self.bucket_counts[bucket] if self.bucket_counts else 0

    @property
    def is_open(self) -> bool:
        """False if it keeps what room it has for prompts: it takes no more decode work."""
        return takes_decode(self.kv_tokens, self.capacity_tokens, self.reserved_tokens)

    @property
    def load_tokens(self) -> int:
        """K and what waits for memory: the load that the unit has to carry."""
        return self.kv_tokens + self.waiting_tokens

    @property
    def predicted_tokens(self) -> float:
        """K_pred: the mean load over the horizon; the present load where none is predicted."""
        return self.load_tokens if self.ahead is None else self.ahead.mean

    @property
    def capacity_tokens(self) -> int:
        """Tokens whose KV the whole pool holds."""
        return self.num_blocks * self.block_size

    def will_hold(self, request: Placeable) -> bool:
        """Return whether its memory suffices over the whole horizon, as far as is predicted."""
        if self.ahead is None:
            return True
        peak = self.ahead.peak_with(request.num_tokens, request.predicted_remaining)
        return peak <= self.capacity_tokens

    def take(self, request: Placeable) -> None:
        """Add a request: ``B += 1``, ``K += len(r)``."""
        self.num_requests += 1
        self.kv_tokens += request.num_tokens
        self.num_free_blocks -= blocks_for(request.num_tokens, self.block_size)
        if self.bucket_counts:
            self.bucket_counts[request.bucket] += 1
        if self.ahead is not None:
            self.ahead.take(request.num_tokens, request.predicted_remaining)


def blocks_wanted(request: Placeable, block_size: int, num_blocks: int) -> int:
    """Blocks a unit must have free: with room to grow, unless the whole pool is too small."""
    wanted = blocks_for(request.num_tokens + request.num_growth_tokens, block_size)
    least = blocks_for(request.num_tokens, block_size)
    return max(least, min(wanted, num_blocks))


Score = Callable[[DecodeUnit], tuple[float, ...]]
"""The score of a unit: the least is taken."""


class Choice(NamedTuple, Generic[R]):
    """``request`` goes to ``unit``; ``score`` is what it won with, least first."""

    request: R
    unit: UnitId
    score: tuple[float, ...]


class Placement(Protocol):
    """Which DP unit decodes each prefilled request, if any has room?"""

    reads_buckets: bool = False
    """True if units have to tell their requests by bucket."""

    reads_phases: bool = False
    """True if it reads what units reason and answer, which workers have to report."""

    reads_ahead: bool = False
    """True if it reads predicted loads, which workers have to report."""

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Return the placed requests and update ``units``; the other requests wait."""
        ...

    @property
    def score(self) -> Score | None:
        """Score of a unit, least first, of a policy to which all requests are alike; else None."""
        return None

    def scores(
        self,
        request: Placeable | None,
        units: Sequence[DecodeUnit],
        here: DecodeUnit | None = None,
    ) -> Sequence[tuple[float, ...]]:
        """Return what each unit would win or lose with, least first, for people; or nothing.

        ``request``: None if several are placed together. ``here``: where an answer is now, None
        for a placement.
        """
        score = self.score
        return [score(unit) for unit in units] if score is not None else ()

    def boundary(
        self, request: R, here: DecodeUnit, units: Sequence[DecodeUnit]
    ) -> Choice[R] | None:
        """Return the unit for an answer whose reasoning ended ``here``; None: it stays."""
        return None
