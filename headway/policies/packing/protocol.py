"""The input and the output of a packing policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

from headway.blocks import blocks_for
from headway.cluster import UnitId
from headway.request import StreamKey


class Packable(Protocol):
    """A waiting request, as a packing policy sees it."""

    @property
    def key(self) -> StreamKey:
        """Breaks every tie."""

    @property
    def arrival_at(self) -> float:
        """When the client's request reached the gateway, seconds since the epoch."""

    @property
    def num_tokens(self) -> int:
        """len(r): tokens that the prefill has to compute."""


class Prompted(Packable, Protocol):
    """A request whose prompt waits for a DP unit."""

    @property
    def opens_answer(self) -> bool:
        """True if its reader waits for its first token: it is read as it comes, and reasons not."""


P = TypeVar("P", bound=Prompted)


@dataclass(slots=True)
class Room:
    """The room left on one DP unit while a batch is packed.

    ``capacity``: C_avail, tokens; may be negative. ``num_spare_blocks`` stay free for the growth
    of what runs, unless the unit is ``empty``.
    """

    unit: UnitId
    capacity: int
    num_free_blocks: int
    num_spare_blocks: int
    block_size: int
    empty: bool

    @property
    def most_tokens(self) -> int:
        """The longest prompt whose KV has room; negative where not even none has."""
        spare = 0 if self.empty else self.num_spare_blocks
        return (self.num_free_blocks - spare) * self.block_size

    def fits(self, num_tokens: int) -> bool:
        """Return whether the KV of so many tokens has room."""
        return num_tokens <= self.most_tokens

    def take(self, num_tokens: int, capacity: int) -> None:
        """Assign a request of so many tokens; ``capacity`` is left."""
        self.num_free_blocks -= blocks_for(num_tokens, self.block_size)
        self.capacity = capacity
        self.empty = False


class Assigned(NamedTuple, Generic[P]):
    """``request`` goes to ``unit``, which has ``capacity`` tokens left (or owes them)."""

    request: P
    unit: UnitId
    capacity: int


NO_HITS: Mapping[UnitId, int] = MappingProxyType({})
ANY_UNIT: Mapping[StreamKey, UnitId] = MappingProxyType({})

Hits = Callable[[P], Mapping[UnitId, int]]
"""Prompt tokens of the request whose KV blocks a unit already holds, for those that hold any."""


class Packing(Protocol):
    """Which DP unit of one instance does each waiting request go to, if any?"""

    def pack(
        self,
        legacy: Sequence[P],
        new: Sequence[P],
        rooms: Sequence[Room],
        *,
        hits: Hits[P] | None = None,
        capped: bool = True,
        own: Mapping[StreamKey, UnitId] = ANY_UNIT,
    ) -> list[Assigned[P]]:
        """Return the assigned requests; the others wait for the next cycle.

        ``legacy`` are the requests left over from earlier cycles. Not ``capped``: C_avail only
        ranks units, and a unit that owes tokens is given more. ``own``: the unit of requests that
        go to no other.
        """
