"""Routers that send each request at once to one unit: the field's, to compare with.

They choose by what units owe and hold, and hold nothing back. A unit without blocks for the prompt
is no candidate; real routers let it queue at the engine, which comes to the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headway.bounds import Bounded, between, over
from headway.policies.dispatch.prefix_hits import Matches
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
    num_hit_tokens: int

    @property
    def name(self) -> tuple[str, int]:
        """Breaks ties."""
        return self.unit.unit


class Routing(Dispatching):
    """Dispatch of each request, by order of arrival, to the unit that the rule chooses."""

    reads_prefixes: ClassVar[bool] = True
    holds_back: ClassVar[bool] = False
    rule: ClassVar[str]
    """The rule's name in decisions."""

    def __init__(self, params: RoutingParams) -> None:
        super().__init__(params.window, params.default_pass_time)
        self._table = PromptUnits()

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
        given: dict[str, dict[StreamKey, OwnUnit]] = {}
        for entry in waiting:
            matches = self.matches(entry)
            able = self._candidates(entry, matches)
            if not able:
                continue
            chosen = self.choose(entry, able)
            unit, num_hit = chosen.unit, chosen.num_hit_tokens
            own = OwnUnit(unit.unit, num_hit, int(unit.num_owed_tokens))
            self._table.take(unit.unit, max(1, entry.num_tokens - num_hit), entry.num_tokens)
            given.setdefault(unit.unit.worker_id, {})[entry.key] = own
        self._table.restore()
        return [
            Turn(worker_id, self.rule, capped=False, keys=list(own), own=own)
            for worker_id, own in given.items()
        ]

    def _candidates(self, entry: Waiting, matches: Matches | None) -> list[RoutedUnit]:
        return [
            RoutedUnit(unit, matches.hit(unit.unit).num_tokens if matches is not None else 0)
            for unit in self._table
            if entry.num_tokens <= unit.free_tokens
        ]

    @abstractmethod
    def choose(self, entry: Waiting, able: Sequence[RoutedUnit]) -> RoutedUnit:
        """Return the unit that a request goes to, of at least one that can take it."""
