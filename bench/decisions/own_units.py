"""The choice of own units, over many units that hold agents' sessions: ``sbs-warm``'s decisions."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import cast

from headway.blocks import num_waypoints
from headway.cluster import Role, UnitId, WorkerInfo
from headway.core.scheduler.places import InWindow, Tracked
from headway.core.scheduler.prefixes import Prefixes
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.protocol import FindMatches, UnitDebt
from headway.policies.dispatch.sbs_warm import WarmStaggeredBatch
from headway.request import StreamKey

_BASE_UNITS = 400
_SESSIONS_PER_UNIT = 8
_SYSTEM_TOKENS, _PROMPT_TOKENS = 5000, 17_400
_NUM_WAITING = 64
_CHUNK, _BLOCK, _NUM_BLOCKS = 8192, 16, 25_600


class _Sessions:
    """Units that each hold some sessions, behind one of four system prompts."""

    def __init__(self, num_units: int) -> None:
        self._rng = random.Random(1)
        self._names = count()
        system = num_waypoints(_SYSTEM_TOKENS)
        self._systems = [[next(self._names) for _ in range(system)] for _ in range(4)]
        self._num_asked = 0
        self.prefixes = Prefixes()
        self.policy = WarmStaggeredBatch()
        self.policy.matches = cast(FindMatches, self.prefixes.matches)
        self._sessions: list[tuple[int, ...]] = []
        self.loads = [self._unit(f"worker-{number:04}") for number in range(num_units)]

    def _unit(self, name: str) -> InstanceLoad:
        info = WorkerInfo(name, name, Role.UNIFIED, "m", 1, _CHUNK, _BLOCK, _NUM_BLOCKS, 1 << 20, 8)
        self.prefixes.join(info)
        self.policy.join(name, Role.UNIFIED)
        unit = UnitId(name, 0)
        num_new = num_waypoints(_PROMPT_TOKENS) - num_waypoints(_SYSTEM_TOKENS)
        for _ in range(_SESSIONS_PER_UNIT):
            own = (next(self._names) for _ in range(num_new))
            session = (*self._rng.choice(self._systems), *own)
            self._sessions.append(session)
            self.prefixes.note(self._entry(session), unit)
        owed, num_requests = self._rng.randrange(_CHUNK), self._rng.randrange(30)
        room = _CHUNK - owed
        debt = UnitDebt(unit, owed, num_requests, room, _NUM_BLOCKS * _BLOCK)
        return InstanceLoad(
            name, owed, owed, num_requests, 0, True, True, Role.UNIFIED,
            chunk_tokens=_CHUNK, units=(debt,),
        )  # fmt: skip

    def _entry(self, names: tuple[int, ...]) -> Tracked:
        self._num_asked += 1
        key, name = StreamKey("gateway", self._num_asked), f"request-{self._num_asked}"
        entry = Tracked(key, name, "m", InWindow(), None, _PROMPT_TOKENS, 0.0)
        entry.waypoint_names = names
        return entry

    def turns(self) -> list[Tracked]:
        """Return the next turns of sessions drawn at random."""
        return [self._entry(self._rng.choice(self._sessions)) for _ in range(_NUM_WAITING)]


def look(scale: float) -> tuple[str, Callable[[], Callable[[], object]]]:
    """Judge a window of turns; one instance's load has changed since the last look."""
    num_units = int(_BASE_UNITS * scale)
    sessions = _Sessions(num_units)
    policy, loads = sessions.policy, sessions.loads

    def decision() -> Callable[[], object]:
        waiting = sessions.turns()
        return partial(policy.turns, loads, len(waiting), now=1.0, waiting=waiting)

    return f"{_NUM_WAITING} turns of sessions, {num_units} DP units", decision


def one(scale: float) -> tuple[str, Callable[[], Callable[[], object]]]:
    """Judge one turn of a session."""
    num_units = int(_BASE_UNITS * scale)
    sessions = _Sessions(num_units)

    def decision() -> Callable[[], object]:
        waiting = sessions.turns()[:1]
        return partial(sessions.policy.turns, sessions.loads, 1, now=1.0, waiting=waiting)

    return f"1 turn of a session, {num_units} DP units", decision
