"""Routers that send each request at once to one unit: the field's, to compare with.

They choose by what units owe and hold, and hold nothing back. A unit without blocks for the prompt
is no candidate, and those behind the request are looked at. Real routers let it queue at the
engine, where it holds up who comes behind it and the order decides (``docs/reproduce.md``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from headway.bounds import Bounded, between, over
from headway.policies.dispatch.prefix_hits import NO_HIT, Hit, Matches
from headway.policies.dispatch.prompt_units import PromptUnit, PromptUnits
from headway.policies.dispatch.protocol import Dispatching, InstanceLoad, OwnUnit, Turn, Waiting
from headway.request import StreamKey


@dataclass(frozen=True, slots=True)
class RoutingParams(Bounded):
    """``default_pass_time``: shown before the first pass, seconds. ``window``: passes."""

    default_pass_time: float = over(0, default=0.05)
    window: int = between(1, 100_000, default=32)


@dataclass(frozen=True, slots=True)
class RoutedUnit:
    """A unit that a request may go to: what it has, and the prompt tokens that it holds."""

    unit: PromptUnit
    hit: Hit
    is_cold: bool
    """True if no unit holds any of the prompt."""

    @classmethod
    def of(cls, unit: PromptUnit, matches: Matches | None) -> RoutedUnit:
        """Return a unit with what it holds of a prompt."""
        if matches is None:
            return cls(unit, NO_HIT, True)
        return cls(unit, matches.hit(unit.unit), not matches.longest)

    @property
    def name(self) -> tuple[str, int]:
        """Breaks ties."""
        return self.unit.unit

    @property
    def num_hit_tokens(self) -> int:
        """Prompt tokens that it holds, in either memory."""
        return self.hit.num_tokens

    def num_uncached(self, entry: Waiting) -> int:
        """Return the tokens that it would compute of a prompt; at least the last."""
        return max(1, entry.num_tokens - self.hit.num_tokens)


Cost = Callable[[RoutedUnit], float]


class Routing(Dispatching):
    """Dispatch of each request, by order of arrival, to the unit that the rule chooses."""

    holds_back: ClassVar[bool] = False
    rule: ClassVar[str]
    """The rule's name in decisions."""
    waits_for_one: ClassVar[bool] = False
    """True if a request may wait for a full unit: then all have to be looked at."""

    def __init__(self, params: RoutingParams) -> None:
        super().__init__(params.window, params.default_pass_time)
        self._table = PromptUnits()
        self._chosen: dict[StreamKey, tuple[Waiting, RoutedUnit]] = {}
        """What the last turns give, until they are used."""

    def leave(self, worker_id: str) -> None:
        """Remove an instance."""
        self._table.forget(worker_id)

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Return a turn for each instance that is given requests, with their units."""
        self._table.update(loads)
        self._chosen.clear()
        given: dict[str, dict[StreamKey, OwnUnit]] = {}
        held: dict[StreamKey, OwnUnit] = {}
        for entry in waiting:
            if self._table.are_full and not self.waits_for_one:
                break  # thousands may wait behind it
            matches = self.matches(entry)
            able = self.candidates(entry, matches)
            if matches is not None:
                able = [each for each in able if matches.allows(each.unit.unit)]
            if not able:
                continue
            chosen = self.choose(entry, able)
            unit, uncached = chosen.unit, chosen.num_uncached(entry)
            own = OwnUnit(unit.unit, chosen.num_hit_tokens, int(unit.num_owed_tokens))
            has_room = unit.holds(entry)
            self._table.take(unit.unit, uncached, entry.num_tokens)
            if has_room:
                given.setdefault(unit.unit.worker_id, {})[entry.key] = own
                self._chosen[entry.key] = entry, chosen
            else:
                held[entry.key] = own
        self._table.restore()
        self.held = held
        return [
            Turn(worker_id, self.rule, capped=False, keys=list(own), own=own)
            for worker_id, own in given.items()
        ]

    def dispatched(self, turn: Turn, dispatch_id: int, *, now: float) -> None:
        """Note that requests were sent where the rule said."""
        for key in turn.own:
            if key in self._chosen:
                self.sent(*self._chosen.pop(key), now=now)

    def candidates(self, entry: Waiting, matches: Matches | None) -> list[RoutedUnit]:
        """Return the units that a request may go to: those with blocks for its prompt."""
        return [RoutedUnit.of(unit, matches) for unit in self._table if unit.holds(entry)]

    @abstractmethod
    def choose(self, entry: Waiting, able: Sequence[RoutedUnit]) -> RoutedUnit:
        """Return the unit that a request goes to, of at least one candidate.

        At one without room for it the request waits, and those behind it as well.
        """

    def sent(self, entry: Waiting, routed: RoutedUnit, *, now: float) -> None:
        """Note that a request has gone to a unit."""


def least(entry: Waiting, able: Sequence[RoutedUnit], cost: Cost) -> RoutedUnit:
    """Return the unit of least cost; ties are drawn, and the same for a request at each look."""
    costs = [cost(each) for each in able]
    lowest = min(costs)
    best = [each for each, value in zip(able, costs, strict=True) if value == lowest]
    return best[0] if len(best) == 1 else max(best, key=lambda each: draw(*entry.key, *each.name))


def draw(*parts: object) -> float:
    """Return a number from 0 to 1, drawn uniformly by a hash: equal for equal parts."""
    digest = blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
