"""``round-robin``: the baseline that looks at nothing but room."""

from __future__ import annotations

from collections.abc import Sequence

from headway.cluster import UnitId
from headway.policies.answer import Answer
from headway.policies.placement.greedy import place_each
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R


class RoundRobinPlacement(Placement):
    """The next unit by id that has room, in order of arrival."""

    def __init__(self) -> None:
        self._last: UnitId | None = None

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Units behind the last one served come first, then the round starts again."""
        return place_each(requests, units, self._pick)

    def _pick(self, request: R, able: list[DecodeUnit]) -> Choice[R]:
        ids, last = [unit.unit for unit in able], self._last
        self._last = min(ids, key=lambda unit: (last is not None and unit <= last, unit))
        return Choice(request, self._last, ())


ANSWER = Answer("round-robin", RoundRobinPlacement, "STAR's baseline")
