"""``session-hash``: the turns of a session go to one unit, drawn by a hash of its name.

Every session ranks all units by a hash of both, and takes the first that is there (rendezvous
hashing): a lost unit moves its own sessions only, and a new one takes its share. What names no
session goes to the unit with the fewest requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from headway.bounds import at_least, one_of
from headway.cluster import UnitId
from headway.policies.answer import Answer
from headway.policies.dispatch.prefix_hits import Matches
from headway.policies.dispatch.protocol import Waiting
from headway.policies.dispatch.routing import RoutedUnit, Routing, RoutingParams, draw, least

HASHED, LEAST = "hashed", "least-requests"
_MOST_SESSIONS = 100_000
"""Sessions whose unit is remembered; those unused longest are forgotten first."""


@dataclass(frozen=True, slots=True)
class SessionHashParams(RoutingParams):
    """``first``: where a session's first turn goes: ``hashed``, or to the unit with the fewest
    requests (``least-requests``), which is then remembered as long as it is there.
    ``most_load``: a unit has at most so many times the mean of requests, and further ones go to
    the next of their session (consistent hashing with bounded loads); 0 for no bound. ``spills``:
    whether a request goes to the next, too, where there are no blocks for its prompt. Else it
    waits, as in the engine's queue.
    """

    first: str = one_of(HASHED, LEAST, default=HASHED)
    most_load: float = at_least(0, default=0.0)
    spills: bool = False


class SessionHash(Routing):
    """Dispatch of a session's requests to the unit that its name hashes to."""

    rule: ClassVar[str] = "session-hash"
    waits_for_one: ClassVar[bool] = True

    def __init__(self, params: SessionHashParams | None = None) -> None:
        self._params = params or SessionHashParams()
        super().__init__(self._params)
        self._units: dict[str, UnitId] = {}
        """The units of sessions by name, the last used at the end."""

    def candidates(self, entry: Waiting, matches: Matches | None) -> list[RoutedUnit]:
        """Return the units that could ever hold the prompt, or have blocks for it now."""
        if self._params.spills or not entry.session_id:
            return super().candidates(entry, matches)
        return [
            RoutedUnit.of(unit, matches)
            for unit in self._table
            if entry.num_tokens <= unit.kv_capacity
        ]

    def choose(self, entry: Waiting, able: Sequence[RoutedUnit]) -> RoutedUnit:
        """Return the session's unit, or the one with the fewest requests."""
        name, params = entry.session_id, self._params
        if params.first == LEAST:
            own = self._units.get(name)
            mine = [each for each in able if each.unit.unit == own]
            return mine[0] if mine else least(entry, able, _num_requests)
        if not name:
            return least(entry, able, _num_requests)
        if params.most_load:
            num_all = 1 + sum(each.unit.num_requests for each in able)
            most = ceil(params.most_load * num_all / len(able))
            able = [each for each in able if each.unit.num_requests < most] or able
        return max(able, key=lambda each: (draw(name, *each.name), each.name))

    def sent(self, entry: Waiting, routed: RoutedUnit, *, now: float) -> None:
        """Remember the unit of a session that is not hashed."""
        if not entry.session_id or self._params.first != LEAST:
            return
        self._units.pop(entry.session_id, None)
        self._units[entry.session_id] = routed.unit.unit
        if len(self._units) > _MOST_SESSIONS:
            del self._units[next(iter(self._units))]


def _num_requests(routed: RoutedUnit) -> int:
    return routed.unit.num_requests


ANSWER = Answer("session-hash", SessionHash, "rendezvous hashing", SessionHashParams)
