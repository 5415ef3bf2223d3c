"""``preble``: exploit the longest beginning or explore by load, whichever computes less (E2).

A prompt of which some unit holds more than half goes to the unit that holds most of it; of several,
to the least loaded. Any other goes where load and its own prefill cost least. A unit's load are the
seconds of the prompts that it was sent within a window, and of the outputs that run there. Where it
has many times that of the lightest unit, the lightest takes over what it would exploit, and with
that the prefix: this stands for the paper's balancing and for its copies of hot prefixes, which
wait for doubled queueing times. Left out: the cost of evicting what was asked for within the
window, and the engine's fair queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headway.bounds import at_least, between, over
from headway.cluster import UnitId
from headway.cost.costs import Constant, Costs
from headway.policies.answer import Answer
from headway.policies.dispatch.protocol import InstanceLoad, Turn, Waiting
from headway.policies.dispatch.routing import RoutedUnit, Routing, RoutingParams, least
from headway.policies.readers import CostReader, chosen

_PER_TOKEN, _PER_REQUEST, _PER_KV_TOKEN = 1e-4, 1e-4, 1e-7
"""Seconds while nothing is known."""


@dataclass(frozen=True, slots=True)
class PrebleParams(RoutingParams):
    """``history``: H, the window of loads, seconds. ``balance``: Th_bal, times the lightest load,
    which counts once ``least_requests`` were sent within the window; 0 for no balancing.
    ``default_output``: tokens of an output while none is expected.
    """

    history: float = over(0, 86_400, default=180.0)
    balance: float = at_least(0, default=15.0)
    least_requests: int = between(1, 1_000_000, default=50)
    default_output: float = over(0, default=45.0)


class Preble(Routing, CostReader):
    """Dispatch by E2: exploitation and exploration."""

    rule: ClassVar[str] = "preble"

    def __init__(self, params: PrebleParams | None = None) -> None:
        self._params = params or PrebleParams()
        super().__init__(self._params)
        self._history: deque[tuple[float, UnitId, int]] = deque()
        """When prompts were sent, where, and the tokens to compute."""
        self._computed: dict[UnitId, int] = {}
        """Tokens of those within the window."""
        self._mean_output = self._params.default_output
        self.learn(Costs())

    def learn(self, costs: Costs) -> None:
        """Take the seconds of a prompt token, and of a decode pass."""

        def known(name: str, field: str, default: float) -> Constant:
            return chosen(
                name, None, getattr(costs, field) or None, costs.source_of(field), default
            )

        self._per_token = known("prompt token", "prefill_per_token", _PER_TOKEN)
        self._per_request = known("request of a decode pass", "per_request", _PER_REQUEST)
        self._per_kv_token = known("KV token of a decode pass", "per_kv_token", _PER_KV_TOKEN)

    def constants(self) -> Sequence[Constant]:
        """Return the seconds of which loads are made."""
        return self._per_token, self._per_request, self._per_kv_token

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Forget what was sent before the window, and route."""
        while self._history and self._history[0][0] <= now - self._params.history:
            _, unit, num_tokens = self._history.popleft()
            self._computed[unit] -= num_tokens
        return super().turns(loads, num_waiting, now=now, waiting=waiting)

    def sent(self, entry: Waiting, routed: RoutedUnit, *, now: float) -> None:
        """Add a prompt to its unit's load."""
        unit, num_tokens = routed.unit.unit, routed.num_uncached(entry)
        self._history.append((now, unit, num_tokens))
        self._computed[unit] = self._computed.get(unit, 0) + num_tokens
        if entry.expected_output > 0:
            self._mean_output += (entry.expected_output - self._mean_output) / self._params.window

    def choose(self, entry: Waiting, able: Sequence[RoutedUnit]) -> RoutedUnit:
        """Return the unit to exploit or to explore."""
        longest = max(each.num_hit_tokens for each in able)
        if 2 * longest <= entry.num_tokens:
            return least(entry, able, lambda each: self._load(each) + self._prefill(entry, each))
        holders = [each for each in able if each.num_hit_tokens == longest]
        exploited = least(entry, holders, self._load)
        return self._balanced(entry, exploited, able)

    def _balanced(
        self, entry: Waiting, exploited: RoutedUnit, able: Sequence[RoutedUnit]
    ) -> RoutedUnit:
        """Return the lightest unit in place of one that is out of balance with it."""
        if not self._params.balance or len(self._history) < self._params.least_requests:
            return exploited
        lightest = least(entry, able, self._load)
        limit = self._params.balance * self._load(lightest)
        return lightest if self._load(exploited) > limit else exploited

    def _prefill(self, entry: Waiting, routed: RoutedUnit) -> float:
        """Return P: seconds to compute a prompt there."""
        return self._per_token.value * routed.unit.load.num_units * routed.num_uncached(entry)

    def _load(self, routed: RoutedUnit) -> float:
        """Return L: seconds of the prompts of the window, and of the outputs that run."""
        unit = routed.unit
        per_token = self._per_token.value * unit.load.num_units
        per_request, per_kv = self._per_request.value, self._per_kv_token.value
        decode_pass = per_request * unit.num_running + per_kv * unit.kv_tokens
        prompts = per_token * self._computed.get(unit.unit, 0)
        return prompts + unit.num_running * self._mean_output * decode_pass


ANSWER = Answer("preble", Preble, "Preble (arXiv:2407.00023), section 3.2", PrebleParams)
