"""``star``: prefilled requests go where current and predicted loads stay level (STAR, Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf

import numpy as np

from headway.bounds import Bounded, over
from headway.policies.answer import Answer
from headway.policies.placement.ahead import Floats
from headway.policies.placement.greedy import by_arrival, may_take, place_each, wanted_blocks
from headway.policies.placement.protocol import Choice, DecodeUnit, Placeable, Placement, R
from headway.policies.placement.table import UnitTable
from headway.policies.rescheduling.star import step_weights

_CLOSE = 1 + 1e-9
"""Sums over the same steps in another order differ by less than this factor."""
_weights = cache(step_weights)


@dataclass(frozen=True, slots=True)
class StarPlacementParams(Bounded):
    """``rho``: what a step of the horizon weighs against the one before it, as for the moves."""

    rho: float = over(0, 1, default=0.98)


class StarPlacement(Placement):
    """The unit where the variance of loads rises least, by input and predicted output length.

    A request with trace τ raises Σβ·L² by 2·Σβ·τ·L and by what is the same on every unit. Units
    whose KV would outgrow their memory within the horizon come last.
    """

    reads_ahead = True

    def __init__(self, params: StarPlacementParams | None = None) -> None:
        self._rho = (params or StarPlacementParams()).rho

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Place in order of arrival."""
        if not isinstance(units, UnitTable):
            return place_each(requests, units, self._pick)
        choices: list[Choice[R]] = []
        for request in sorted(requests, key=by_arrival):
            near = self._near(request, units)
            if near:
                choice = self._pick(request, near)
                best = next(unit for unit in near if unit.unit == choice.unit)
                best.take(request)
                units.update(best)
                choices.append(choice)
        return choices

    def scores(
        self,
        request: Placeable | None,
        units: Sequence[DecodeUnit],
        here: DecodeUnit | None = None,
    ) -> Sequence[tuple[float, ...]]:
        """Return the rise of each, tokens squared."""
        if request is None or not units:
            return ()
        if isinstance(units, UnitTable):
            return [(rise,) for rise in self._rises(request, units).tolist()]
        return [(self._rise(request, unit),) for unit in units]

    def _pick(self, request: R, able: list[DecodeUnit]) -> Choice[R]:
        able = [unit for unit in able if unit.will_hold(request)] or able
        rise = partial(self._rise, request)
        best = min(able, key=lambda unit: (rise(unit), unit.unit))
        return Choice(request, best.unit, (rise(best),))

    def _near(self, request: R, table: UnitTable) -> list[DecodeUnit]:
        """Return the units with room that may be the best, by rises of all units at once."""
        wanted, barred = wanted_blocks(request, table), request.barred
        if wanted is None:
            return []
        rises = self._rises(request, table)
        near: list[DecodeUnit] = []
        full: list[DecodeUnit] = []  # the best of those whose memory will not suffice
        most = most_full = inf
        for at in np.argsort(rises, kind="stable").tolist():
            unit, rise = table[at], float(rises[at])
            if rise > most:
                break
            if not may_take(unit, wanted, barred):
                continue
            if unit.will_hold(request):
                most = min(most, _CLOSE * rise)
                near.append(unit)
            elif rise <= most_full:
                most_full = min(most_full, _CLOSE * rise)
                full.append(unit)
        return near or full

    def _rises(self, request: Placeable, table: UnitTable) -> Floats:
        """Return Σβ·τ·L of every unit, (n,), up to rounding errors."""
        loads, first = table.loads_ahead, table[0].ahead
        if loads is None or first is None:
            return np.array([self._rise(request, unit) for unit in table])
        trace = first.trace(request.num_tokens, request.predicted_remaining)
        return np.asarray(loads @ (_weights(len(trace) - 1, self._rho) * trace))

    def _rise(self, request: Placeable, unit: DecodeUnit) -> float:
        """Return Σβ·τ·L, tokens squared."""
        ahead = unit.ahead
        if ahead is None:
            return float(request.num_tokens * unit.load_tokens)
        trace = ahead.trace(request.num_tokens, request.predicted_remaining)
        weights = _weights(len(trace) - 1, self._rho)
        return float(weights @ (trace * ahead.loads))


ANSWER = Answer("star", StarPlacement, "STAR, Fig. 5", StarPlacementParams)
