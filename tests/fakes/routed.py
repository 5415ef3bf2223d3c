"""Prompts and units for policies that send each request to one unit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headway.cluster import Role, UnitId
from headway.policies.dispatch.prefix_hits import NO_HIT, Hit
from headway.policies.dispatch.protocol import InstanceLoad, Turn, UnitDebt, Waiting
from headway.policies.dispatch.routing import Routing
from headway.request import StreamKey

ROOM = 100_000
"""Tokens of KV."""


@dataclass(frozen=True)
class RoutedPrompt:
    """A waiting request; ``hits``: tokens that workers hold of it, on the device and in host."""

    name: int
    num_tokens: int = 1000
    session_id: str = ""
    hits: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    expected_output: float = 0.0
    is_burst: bool = False
    opens_answer: bool = False
    among: frozenset[str] | None = None
    """The only workers that it may go to."""

    @property
    def key(self) -> StreamKey:
        return StreamKey("g", self.name)

    @property
    def arrival_at(self) -> float:
        return float(self.name)

    due_at = arrival_at


@dataclass(frozen=True)
class HeldBeginnings:
    """Who holds a prompt's beginning."""

    hits: Mapping[UnitId, Hit]
    among: frozenset[str] | None = None

    def allows(self, unit: UnitId) -> bool:
        return self.among is None or unit.worker_id in self.among

    def hit(self, unit: UnitId) -> Hit:
        return self.hits.get(unit, NO_HIT)

    def holds(self, unit: UnitId) -> bool:
        return unit in self.hits

    def holders(self, most: int) -> Sequence[UnitId]:
        return sorted(self.hits, key=lambda unit: -self.hits[unit].num_tokens)[:most]

    @property
    def longest(self) -> int:
        return max((hit.num_tokens for hit in self.hits.values()), default=0)

    @property
    def shortest(self) -> int:
        return 0


def matches(entry: Waiting) -> HeldBeginnings | None:
    """What a policy is told of a prompt of ours."""
    assert isinstance(entry, RoutedPrompt)
    if not entry.hits and entry.among is None:
        return None
    hits = {
        UnitId(worker, 0): Hit(*hit) if isinstance(hit, tuple) else Hit(hit)
        for worker, hit in entry.hits.items()
    }
    return HeldBeginnings(hits, entry.among)


def unit(
    worker_id: str,
    *,
    owed: int = 0,
    requests: int = 0,
    running: int = 0,
    used: int = 0,
    room: int = ROOM,
    capacity: int = ROOM,
) -> InstanceLoad:
    """An instance of one unit."""
    debt = UnitDebt(
        UnitId(worker_id, 0), owed, requests, 8192 - owed, room, running, used, capacity
    )
    return InstanceLoad(
        worker_id,
        owed,
        owed,
        requests,
        max(0, requests - running),
        has_capacity=owed < 8192,
        has_room=room > 0,
        role=Role.UNIFIED,
        chunk_tokens=8192,
        units=(debt,),
    )


def turns_of(
    policy: Routing,
    loads: Sequence[InstanceLoad],
    waiting: Collection[RoutedPrompt],
    now: float = 0.0,
) -> list[Turn]:
    """The turns of a look at the window."""
    policy.matches = matches
    return policy.turns(loads, len(waiting), now=now, waiting=waiting)


def sent_by(
    policy: Routing, loads: Sequence[InstanceLoad], *waiting: RoutedPrompt, now: float = 0.0
) -> dict[int, str]:
    """Where a look's requests go, by name; all turns are used."""
    where: dict[int, str] = {}
    for turn in turns_of(policy, loads, waiting, now):
        policy.dispatched(turn, 1, now=now)
        where |= {key.stream_id: turn.worker_id for key in turn.own}
    return where


def goes_to(
    policy: Routing, loads: Sequence[InstanceLoad], prompt: RoutedPrompt, now: float = 0.0
) -> str | None:
    """Where a request goes that is alone in the window."""
    return sent_by(policy, loads, prompt, now=now).get(prompt.name)
