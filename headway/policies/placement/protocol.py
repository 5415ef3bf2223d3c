"""What a placement policy reads and what it answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headway.blocks import blocks_for
from headway.cluster import UnitId
from headway.request import StreamKey


class Placeable(Protocol):
    """One prefilled request, as a placement policy sees it."""

    @property
    def key(self) -> StreamKey:
        """Breaks every tie."""

    @property
    def arrival_at(self) -> float:
        """When the client's request reached the gateway, seconds since the epoch."""

    @property
    def num_tokens(self) -> int:
        """len(r): prompt and output tokens so far."""

    @property
    def num_growth_tokens(self) -> int:
        """Tokens that must find room beside them."""

    @property
    def barred(self) -> Collection[UnitId]:
        """Units that this request must not go to now."""


R = TypeVar("R", bound=Placeable)


@dataclass(slots=True)
class DecodeUnit:
    """One DP unit while a batch is placed: ``num_requests`` is B, ``kv_tokens`` is K."""

    unit: UnitId
    num_requests: int
    kv_tokens: int
    num_free_blocks: int
    num_blocks: int
    block_size: int

    @property
    def capacity_tokens(self) -> int:
        """Tokens whose KV the whole pool holds."""
        return self.num_blocks * self.block_size

    def take(self, request: Placeable) -> None:
        """``B += 1``, ``K += len(r)`` before the next request."""
        self.num_requests += 1
        self.kv_tokens += request.num_tokens
        self.num_free_blocks -= blocks_for(request.num_tokens, self.block_size)


def blocks_wanted(request: Placeable, block_size: int, num_blocks: int) -> int:
    """Blocks a unit must have free: with room to grow, unless the whole pool is too small."""
    wanted = blocks_for(request.num_tokens + request.num_growth_tokens, block_size)
    least = blocks_for(request.num_tokens, block_size)
    return max(least, min(wanted, num_blocks))


@dataclass(frozen=True, slots=True)
class Choice(Generic[R]):
    """``request`` goes to ``unit``; ``score`` is what it won with, least first."""

    request: R
    unit: UnitId
    score: tuple[float, ...]


class Placement(Protocol):
    """Which DP unit decodes each prefilled request, if any has room?"""

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """The placed requests; who is not among them waits. ``units`` are updated."""
