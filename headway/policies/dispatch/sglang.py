"""``sglang``: to the longest beginning while loads are balanced, else to the fewest requests.

Loads are out of balance when the most requests of a unit exceed the fewest by an absolute and by a
relative threshold. A beginning counts only if it is a share of the prompt above the cache's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headway.bounds import at_least, between
from headway.policies.answer import Answer
from headway.policies.dispatch.protocol import Waiting
from headway.policies.dispatch.routing import RoutedUnit, Routing, RoutingParams, least


@dataclass(frozen=True, slots=True)
class SglangParams(RoutingParams):
    """``cache_threshold``: share of the prompt. ``balance_abs`` and ``balance_rel``: requests, and
    times the fewest.
    """

    cache_threshold: float = between(0, 1, default=0.3)
    balance_abs: int = at_least(0, default=64)
    balance_rel: float = at_least(1, default=1.5)


class Sglang(Routing):
    """Dispatch by prefix while the units' requests are balanced."""

    rule: ClassVar[str] = "sglang"

    def __init__(self, params: SglangParams | None = None) -> None:
        self._params = params or SglangParams()
        super().__init__(self._params)

    def choose(self, entry: Waiting, able: Sequence[RoutedUnit]) -> RoutedUnit:
        """Return the one with the longest beginning, or the fewest requests."""
        longest = max(each.num_hit_tokens for each in able)
        if longest > self._params.cache_threshold * entry.num_tokens and self._is_balanced():
            able = [each for each in able if each.num_hit_tokens == longest]
        return least(entry, able, lambda each: each.unit.num_requests)

    def _is_balanced(self) -> bool:
        counts = [unit.num_requests for unit in self._table]
        most, fewest = max(counts), min(counts)
        params = self._params
        return most - fewest <= params.balance_abs or most <= params.balance_rel * fewest


ANSWER = Answer("sglang", Sglang, "SGLang's model gateway, cache_aware", SglangParams)
