"""``round-robin``: the baseline. Requests by arrival, DP units in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.cluster import UnitId
from headway.policies.answer import Answer
from headway.policies.packing.protocol import ANY_UNIT, Assigned, Hits, P, Room
from headway.request import StreamKey


class RoundRobinPacking:
    """Packing of each request to the next unit of its instance that may take one."""

    def __init__(self) -> None:
        self._last: dict[str, UnitId] = {}

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
        """Assign by arrival, then key; hits are not asked."""
        assigned: list[Assigned[P]] = []
        for request in sorted([*legacy, *new], key=lambda r: (r.arrival_at, r.key)):
            able = [
                room
                for room in rooms
                if room.fits(request.num_tokens)
                and (room.capacity > 0 or not capped)
                and own.get(request.key, room.unit) == room.unit
            ]
            if not able:
                continue
            room = min(able, key=self._rank)
            room.take(request.num_tokens, room.capacity - request.num_tokens)
            self._last[room.unit.worker_id] = room.unit
            assigned.append(Assigned(request, room.unit, room.capacity))
        return assigned

    def _rank(self, room: Room) -> tuple[bool, UnitId]:
        """Units behind the last one served come first, then the round starts again."""
        last = self._last.get(room.unit.worker_id)
        return last is not None and room.unit <= last, room.unit


ANSWER = Answer("round-robin", RoundRobinPacking, "SBS's baseline")
