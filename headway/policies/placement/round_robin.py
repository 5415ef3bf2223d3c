"""``round-robin``: the baseline that looks at nothing but room."""

from __future__ import annotations

from collections.abc import Sequence

from headway.cluster import UnitId
from headway.policies.answer import Answer
from headway.policies.placement.greedy import Rooms, by_arrival
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R


class RoundRobinPlacement(Placement):
    """The next unit by id that has room, in order of arrival."""

    def __init__(self) -> None:
        self._last: UnitId | None = None

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Units behind the last one served come first, then the round starts again."""
        rooms = Rooms(units)
        choices: list[Choice[R]] = []
        for request in sorted(requests, key=by_arrival):
            able = rooms.able(request)
            if able:
                best = min(able, key=self._rank)
                best.take(request)
                self._last = best.unit
                choices.append(Choice(request, best.unit, ()))
        return choices

    def _rank(self, unit: DecodeUnit) -> tuple[bool, UnitId]:
        return self._last is not None and unit.unit <= self._last, unit.unit


ANSWER = Answer("round-robin", RoundRobinPlacement, "STAR's baseline")
