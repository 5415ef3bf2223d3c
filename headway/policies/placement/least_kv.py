"""``least-kv``: the baseline that looks at memory alone."""

from __future__ import annotations

from collections.abc import Sequence

from headway.policies.answer import Answer
from headway.policies.placement.greedy import by_arrival, place_greedily
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R, Score


def _kv_then_batch(unit: DecodeUnit) -> tuple[float, ...]:
    return unit.load_tokens, unit.num_requests


class LeastKv(Placement):
    """The least K, with what waits for memory, in order of arrival."""

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Place on the unit with the least KV, then the fewest requests, then id."""
        return place_greedily(requests, units, score=_kv_then_batch, order=by_arrival)

    @property
    def score(self) -> Score:
        """The load and B of a unit."""
        return _kv_then_batch


ANSWER = Answer("least-kv", LeastKv, "STAR's current-load placement")
