"""``bucket-balance``: an even share of every kind of request (TokenScale, section IV-C).

Requests of a bucket have like lengths, so units with as many of each have like loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.cost.velocity import takes_decode
from headway.policies.answer import Answer
from headway.policies.placement.greedy import by_arrival, place_each, place_greedily
from headway.policies.placement.protocol import Choice, DecodeUnit, Placeable, Placement, R
from headway.policies.placement.table import UnitTable


@dataclass(frozen=True, slots=True)
class _OfBucket:
    """The score of a unit for a request of a bucket: how many it has of these, and its KV."""

    bucket: int

    def __call__(self, unit: DecodeUnit) -> tuple[float, ...]:
        return unit.count_of(self.bucket), unit.kv_tokens


@dataclass(frozen=True, slots=True)
class BucketBalanceParams(Bounded):
    """``reserved_tokens``: of KV that a convertible decoder keeps for prompts (M over the bytes
    of a token, equation 6: ``headway.cost.velocity.reserved_tokens``).
    """

    reserved_tokens: float = between(0, 1e12, default=0.0)


class BucketBalance(Placement):
    """The unit with the fewest requests of the bucket, then the least KV."""

    reads_buckets = True

    def __init__(self, params: BucketBalanceParams | None = None) -> None:
        self._reserved_tokens = (params or BucketBalanceParams()).reserved_tokens

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Place in order of arrival; a convertible keeps what it reserves for prompts."""
        if self._reserved_tokens or not isinstance(units, UnitTable):
            return place_each(requests, units, self._pick)
        choices: list[Choice[R]] = []
        for request in sorted(requests, key=by_arrival):
            choices += place_greedily([request], units, score=_OfBucket(request.bucket))
        return choices

    def scores(
        self,
        request: Placeable | None,
        units: Sequence[DecodeUnit],
        here: DecodeUnit | None = None,
    ) -> Sequence[tuple[float, ...]]:
        """Return the requests of its bucket and the KV of each unit."""
        return [_OfBucket(request.bucket)(unit) for unit in units] if request is not None else ()

    def _pick(self, request: R, able: list[DecodeUnit]) -> Choice[R] | None:
        able, bucket = [unit for unit in able if self._is_open(unit)], request.bucket
        if not able:
            return None
        best = min(able, key=lambda u: (u.count_of(bucket), u.kv_tokens, u.unit))
        return Choice(request, best.unit, (best.count_of(bucket), best.kv_tokens))

    def _is_open(self, unit: DecodeUnit) -> bool:
        reserved = self._reserved_tokens if unit.is_convertible else 0.0
        return takes_decode(unit.kv_tokens, unit.capacity_tokens, reserved)


ANSWER = Answer("bucket-balance", BucketBalance, "TokenScale, section IV-C", BucketBalanceParams)
