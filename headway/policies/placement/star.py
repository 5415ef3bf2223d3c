"""``star``: prefilled requests go where current and predicted loads stay level (STAR, Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headway.bounds import Bounded, over
from headway.policies.answer import Answer
from headway.policies.placement.greedy import place_each
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R
from headway.policies.rescheduling.star import step_weights


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
        return place_each(requests, units, self._pick)

    def _pick(self, request: R, able: list[DecodeUnit]) -> Choice[R]:
        able = [unit for unit in able if unit.will_hold(request)] or able
        rise = partial(self._rise, request)
        best = min(able, key=lambda unit: (rise(unit), unit.unit))
        return Choice(request, best.unit, (rise(best),))

    def _rise(self, request: R, unit: DecodeUnit) -> float:
        """Return Σβ·τ·L, tokens squared."""
        ahead = unit.ahead
        if ahead is None:
            return float(request.num_tokens * unit.load_tokens)
        trace = ahead.trace(request.num_tokens, request.predicted_remaining)
        weights = step_weights(len(trace) - 1, self._rho)
        return float(weights @ (trace * ahead.loads))


ANSWER = Answer("star", StarPlacement, "STAR, Fig. 5", StarPlacementParams)
