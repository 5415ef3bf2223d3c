"""An instance as a dispatch policy sees it, kept up in place."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from headway.cluster import Role, WorkerInfo
from headway.policies.dispatch.protocol import UnitDebt
from headway.policies.packing import Room
from headway.policies.placement import DecodeUnit


class LoadView:
    """The attributes of an ``InstanceLoad``, without making one for each decision.

    ``rooms`` and ``views``: of its units, as packing and placement see them. ``queued_tokens``:
    dispatched, and not computed as far as is reported. ``prompts``: tokens of each prompt, least
    first, of an instance with one unit that only prefills.
    """

    __slots__ = (
        "chunk_tokens",
        "is_on_schedule",
        "num_outstanding",
        "prompts",
        "queued_tokens",
        "role",
        "rooms",
        "views",
        "worker_id",
    )

    def __init__(self, info: WorkerInfo) -> None:
        self.worker_id = info.worker_id
        self.role = info.role
        self.chunk_tokens = info.turn_tokens * info.num_units
        self.rooms: list[Room] = []
        self.views: list[DecodeUnit] = []
        self.prompts: list[int] = []
        self.num_outstanding = self.queued_tokens = 0
        self.is_on_schedule = True

    @property
    def task_depth(self) -> int:
        """Tokens of its queue and of dispatches on their way; 0: quiescence."""
        return self.queued_tokens

    @property
    def num_decoding(self) -> int:
        """B over its units."""
        return sum(view.num_requests for view in self.views)

    @property
    def num_queued(self) -> int:
        """Requests that do not decode."""
        return max(self.num_outstanding - self.num_decoding, 0)

    @property
    def has_capacity(self) -> bool:
        """True if any unit has C_avail above 0."""
        return any(room.capacity > 0 for room in self.rooms)

    @property
    def has_room(self) -> bool:
        """True if any unit has free blocks."""
        for room in self.rooms:  # noqa: SIM110 (for each request: a generator takes thrice as long)
            if room.num_free_blocks > 0:
                return True
        return False

    @property
    def takes_readers(self) -> bool:
        """False: orders in which others yield to a reader are not simulated on views."""
        return False

    @property
    def num_units(self) -> int:
        """Number of its units."""
        return len(self.rooms)

    @property
    def is_lone(self) -> bool:
        """True for one unit that decodes as well."""
        return self.role is Role.UNIFIED and self.num_units == 1

    @property
    def units(self) -> list[UnitDebt]:
        """Its units; the requests that do not decode count as spread evenly over them."""
        chunk, num_each = self.chunk_tokens // len(self.rooms), self.num_queued // len(self.rooms)
        return [
            UnitDebt(
                room.unit,
                chunk - room.capacity,
                view.num_requests + num_each,
                room.capacity,
                room.most_tokens,
                view.num_requests,
                (view.num_blocks - room.num_free_blocks) * room.block_size,
                view.num_blocks * room.block_size,
                self.prompts,
            )
            for room, view in zip(self.rooms, self.views, strict=True)
        ]

    @property
    def free_tokens(self) -> int:
        """The longest prompt that a unit has blocks for."""
        return max(room.most_tokens for room in self.rooms)

    @property
    def kv_tokens(self) -> int:
        """KV in blocks, and what is queued."""
        return self.queued_tokens + sum(view.kv_tokens for view in self.views)

    def came(self, num_tokens: int) -> None:
        """Count a request of so many tokens."""
        self.num_outstanding += 1
        if self.role is Role.PREFILL and self.num_units == 1:
            insort(self.prompts, num_tokens)

    def left(self, num_tokens: int) -> None:
        """Count it no longer."""
        self.num_outstanding -= 1
        place = bisect_left(self.prompts, num_tokens)
        if self.prompts[place : place + 1] == [num_tokens]:
            del self.prompts[place]

    def computed(self, num_tokens: Sequence[int]) -> None:
        """Take a report of prompt tokens computed by each unit."""
        for room, count in zip(self.rooms, num_tokens, strict=True):
            room.capacity += count
            self.queued_tokens -= count
