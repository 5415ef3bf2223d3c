"""``llm-d``: the scorers of llm-d's router with the weights of its guides.

``scorers``: shares of prompt cached, of the shortest queue and of free KV, and for a prompt that
nobody holds the unit longest without such a one; the highest weighted sum is taken. ``sticky``, the
newer guide: only units with most of the prompt, unless computing what they owe takes much longer
than elsewhere; of those the one with the fewest tokens to compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headway.bounds import at_least, between, one_of
from headway.cluster import UnitId
from headway.cost.costs import Constant, Costs
from headway.policies.answer import Answer
from headway.policies.dispatch.protocol import Waiting
from headway.policies.dispatch.routing import RoutedUnit, Routing, RoutingParams, least
from headway.policies.readers import CostReader, chosen

SCORERS, STICKY = "scorers", "sticky"
_PER_TOKEN = 1 / 15_928
"""Seconds of a prompt token while nothing is known: the guide's own figure."""


@dataclass(frozen=True, slots=True)
class LlmDParams(RoutingParams):
    """``guide``: ``scorers`` or ``sticky``. Weights of the first: ``prefix``, ``queue``, ``kv``
    and ``cold``. Of the second: ``affinity``, the share of the prompt that a unit has to hold, and
    ``most_delay``, seconds by which it may owe more than others; 0 for no such limit.
    """

    guide: str = one_of(SCORERS, STICKY, default=SCORERS)
    prefix: float = at_least(0, default=3.0)
    queue: float = at_least(0, default=2.0)
    kv: float = at_least(0, default=2.0)
    cold: float = at_least(0, default=2.0)
    affinity: float = between(0, 1, default=0.8)
    most_delay: float = at_least(0, default=18.0)


class LlmD(Routing, CostReader):
    """Dispatch to the unit with the highest weighted score."""

    rule: ClassVar[str] = "llm-d"

    def __init__(self, params: LlmDParams | None = None) -> None:
        self._params = params or LlmDParams()
        super().__init__(self._params)
        self._cold: dict[UnitId, None] = {}
        """Units that were sent a cold prompt, the longest ago first."""
        self.learn(Costs())

    def learn(self, costs: Costs) -> None:
        """Take the seconds of a prompt token."""
        known, source = costs.prefill_per_token or None, costs.source_of("prefill_per_token")
        self._per_token = chosen("prompt token", None, known, source, _PER_TOKEN)

    def constants(self) -> Sequence[Constant]:
        """Return the seconds of a prompt token, which ``sticky`` uses."""
        return (self._per_token,) if self._params.guide == STICKY else ()

    def leave(self, worker_id: str) -> None:
        """Remove an instance, and when it was last cold."""
        super().leave(worker_id)
        self._cold = {unit: None for unit in self._cold if unit.worker_id != worker_id}

    def choose(self, entry: Waiting, able: Sequence[RoutedUnit]) -> RoutedUnit:
        """Return the unit that the guide takes."""
        if self._params.guide == STICKY:
            able = self._sticky(entry, able)
            return least(entry, able, lambda e: e.unit.num_owed_tokens + e.num_uncached(entry))
        scores = self._scores(entry, able)
        return least(entry, able, lambda each: -scores[each.unit.unit])

    def sent(self, entry: Waiting, routed: RoutedUnit, *, now: float) -> None:
        """Note which unit was sent a prompt that nobody held any of."""
        if routed.is_cold:
            self._cold.pop(routed.unit.unit, None)
            self._cold[routed.unit.unit] = None

    # --- scorers ----------------------------------------------------------------------

    def _scores(self, entry: Waiting, able: Sequence[RoutedUnit]) -> Mapping[UnitId, float]:
        params, num_tokens = self._params, max(1, entry.num_tokens)
        queues = [max(0, each.unit.num_requests - each.unit.num_running) for each in able]
        longest, span = max(queues), max(queues) - min(queues)
        recent = self._recent(able)
        scores: dict[UnitId, float] = {}
        for each, queue in zip(able, queues, strict=True):
            unit = each.unit
            scores[unit.unit] = (
                params.prefix * each.num_hit_tokens / num_tokens
                + params.queue * ((longest - queue) / span if span else 1.0)
                + params.kv * (1.0 - unit.kv_tokens / unit.kv_capacity)
                + params.cold * recent[unit.unit]
            )
        return scores

    def _recent(self, able: Sequence[RoutedUnit]) -> Mapping[UnitId, float]:
        """Return 1 for the unit longest without a cold prompt, down to 0; equal for a warm one."""
        if len(able) < 2 or not able[0].is_cold:
            return {each.unit.unit: 0.5 for each in able}
        units = {each.unit.unit for each in able}
        never = [each.unit.unit for each in able if each.unit.unit not in self._cold]
        ordered = [*never, *(unit for unit in self._cold if unit in units)]
        return {unit: 1.0 - place / (len(ordered) - 1) for place, unit in enumerate(ordered)}

    # --- sticky -----------------------------------------------------------------------

    def _sticky(self, entry: Waiting, able: Sequence[RoutedUnit]) -> Sequence[RoutedUnit]:
        """Return the units with most of the prompt; all, if there are none or they owe too much."""
        needed = self._params.affinity * entry.num_tokens
        warm = [each for each in able if each.num_hit_tokens >= needed]
        others = [each for each in able if each.num_hit_tokens < needed]
        if not (warm and others) or not self._params.most_delay:
            return warm or able
        delay = self._seconds(warm) - self._seconds(others)
        return able if delay > self._params.most_delay else warm

    def _seconds(self, units: Sequence[RoutedUnit]) -> float:
        """Return the least seconds of what one of them owes."""
        return self._per_token.value * min(each.unit.num_owed_tokens for each in units)


ANSWER = Answer("llm-d", LlmD, "llm-d's router, guides of 0.8 to 0.10", LlmDParams)
