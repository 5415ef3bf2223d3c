"""``random``: the baseline that rolls dice among the units with room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.placement.greedy import place_each
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R


@dataclass(frozen=True, slots=True)
class RandomParams(Bounded):
    """``seed`` of the dice."""

    seed: int = between(0, 1 << 63, default=0)


class RandomPlacement(Placement):
    """Placement on any unit that has room, in order of arrival."""

    def __init__(self, params: RandomParams | None = None) -> None:
        self._rng = Random((params or RandomParams()).seed)

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Place at random; the same seed and the same questions give the same answers."""
        return place_each(requests, units, self._pick)

    def _pick(self, request: R, able: list[DecodeUnit]) -> Choice[R]:
        return Choice(request, self._rng.choice(sorted(unit.unit for unit in able)), ())


ANSWER = Answer("random", RandomPlacement, "the common baseline", RandomParams)
