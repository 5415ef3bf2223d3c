"""``pascal``: where a request reasons, and where it answers (PASCAL, section IV-B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.blocks import blocks_for
from headway.bounds import Bounded, between, one_of
from headway.policies.answer import Answer
from headway.policies.placement.greedy import by_arrival, place_greedily
from headway.policies.placement.protocol import (
    Choice,
    DecodeUnit,
    Placeable,
    Placement,
    R,
    blocks_wanted,
)

_REASONING, _KV = "reasoning", "kv"


@dataclass(frozen=True, slots=True)
class PascalPlacementParams(Bounded):
    """``migrates``: whether answers may be given elsewhere than where the reasoning was.
    ``adaptive``: whether a request stays where there is room, if the chosen unit has none.
    ``fewest``: what an answer's unit has the least of: ``reasoning`` requests, as Algorithm 2 is
    printed, or ``kv``. ``from_full``: whether an answer leaves only a unit that has no room for it.
    ``headroom``: the share of a unit's blocks that must stay free for it to have room.
    """

    migrates: bool = True
    adaptive: bool = True
    fewest: str = one_of(_REASONING, _KV, default=_REASONING)
    from_full: bool = False
    headroom: float = between(0, 1, default=0.1)


def _first_choice(unit: DecodeUnit) -> tuple[float, ...]:
    """Algorithm 1: units where no reader waits, then the least KV in device and host memory."""
    return float(not unit.is_on_schedule), unit.load_tokens


class PascalPlacement(Placement):
    """New requests where readers do not wait and KV is least, answers where reasoning is least."""

    reads_phases = True

    def __init__(self, params: PascalPlacementParams | None = None) -> None:
        self._params = params or PascalPlacementParams()

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Algorithm 1, in order of arrival."""
        return place_greedily(requests, units, score=_first_choice, order=by_arrival)

    def scores(
        self,
        request: Placeable | None,
        units: Sequence[DecodeUnit],
        here: DecodeUnit | None = None,
    ) -> Sequence[tuple[float, ...]]:
        """Return what Algorithm 1 compares, or Algorithm 2 for an answer."""
        if here is not None:
            return [self._score(unit, here) for unit in units]
        return [_first_choice(unit) for unit in units]

    def boundary(
        self, request: R, here: DecodeUnit, units: Sequence[DecodeUnit]
    ) -> Choice[R] | None:
        """Algorithm 2, the adaptive rule, and a unit with room instead of two without; or stay."""
        if not self._params.migrates:
            return None
        if self._params.from_full and self._takes(request, here, here):
            return None
        units = [unit for unit in units if unit.is_open or unit.unit == here.unit]
        best = self._best(units, here)
        if self._params.adaptive and not self._takes(request, best, here):
            if self._takes(request, here, here):
                return None
            able = [unit for unit in units if self._takes(request, unit, here)]
            best = self._best(able, here) if able else best
        if best.unit == here.unit:
            return None
        return Choice(request, best.unit, self._score(best, here))

    def _best(self, units: Sequence[DecodeUnit], here: DecodeUnit) -> DecodeUnit:
        """Algorithm 2: of the units where no reader waits, the one with the fewest that reason."""
        compliant = [unit for unit in units if unit.is_on_schedule]
        return min(
            compliant or units,
            key=lambda u: (self._score(u, here, counts_fresh=not compliant), u.unit),
        )

    def _score(
        self, unit: DecodeUnit, here: DecodeUnit, *, counts_fresh: bool = False
    ) -> tuple[float, ...]:
        """Algorithm 2: the fewest that reason (or not), the least KV, the present unit."""
        load = unit.load_tokens, unit.unit != here.unit
        if self._params.fewest == _KV:
            return load
        return unit.num_reasoning + (unit.num_fresh_answering if counts_fresh else 0), *load

    def _takes(self, request: R, unit: DecodeUnit, here: DecodeUnit) -> bool:
        """Return whether the answer has room there; one that stays needs a block."""
        return self._has_room(unit) if unit.unit == here.unit else self._fits(request, unit)

    def _has_room(self, unit: DecodeUnit, num_wanted: int = 1) -> bool:
        """Return whether so many blocks leave the headroom free; an answer that stays needs one.

        Whoever has lost its blocks to others comes back before an answer: its KV counts as well.
        """
        num_wanted += blocks_for(unit.waiting_tokens, unit.block_size)
        return unit.num_free_blocks - num_wanted >= self._params.headroom * unit.num_blocks

    def _fits(self, request: R, unit: DecodeUnit) -> bool:
        return self._has_room(unit, blocks_wanted(request, unit.block_size, unit.num_blocks))


ANSWER = Answer("pascal", PascalPlacement, "PASCAL, Algorithms 1 and 2", PascalPlacementParams)
