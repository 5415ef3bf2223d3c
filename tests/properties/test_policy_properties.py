"""Packing, placement and readiness against plain readings of the paper, on any input."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from headway.blocks import blocks_for
from headway.cluster import UnitId
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.sbs import TOP_UP, SbsParams, StaggeredBatch
from headway.policies.packing import Room
from headway.policies.packing.pbaa import Pbaa
from headway.policies.placement import DecodeUnit
from headway.policies.placement.iqr_lex import IqrLex
from headway.policies.placement.least_kv import LeastKv
from headway.policies.placement.lex import Lex
from headway.policies.placement.min_cost import MinCost
from headway.policies.placement.round_robin import RoundRobinPlacement
from tests.fakes.candidates import Prompt

ITEMS = st.lists(st.tuples(st.integers(1, 90), st.integers(0, 3)), max_size=25).map(
    lambda rows: [Prompt(i, length, float(at)) for i, (length, at) in enumerate(rows)]
)
ROOMS = st.lists(
    st.tuples(st.integers(-60, 200), st.integers(0, 25), st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=6,
).map(
    lambda rows: [
        Room(UnitId("w", unit), capacity, blocks, spare, 10, empty)
        for unit, (capacity, blocks, spare, empty) in enumerate(rows)
    ]
)
UNITS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 400), st.integers(0, 25)), min_size=1, max_size=8
).map(
    lambda rows: [
        DecodeUnit(UnitId("w", unit), b, k, free, 25, 10) for unit, (b, k, free) in enumerate(rows)
    ]
)


# --- Algorithm 2 --------------------------------------------------------------------------


def greedy_dispatch(queue: Sequence[Prompt], rooms: list[Room]) -> list[tuple[int, int]]:
    """GreedyDispatch as printed, with KV room: the best of all units, found by looking."""
    mapping = []
    for r in sorted(queue, key=lambda r: (-r.num_tokens, r.arrival_at, r.key)):
        able = [d for d in rooms if d.fits(r.num_tokens)]
        if not able:
            continue
        best = min(able, key=lambda d: (-(d.capacity - r.num_tokens), d.unit))
        if best.capacity > 0:
            mapping.append((r.name, best.unit.unit))
            best.take(r.num_tokens, best.capacity - r.num_tokens)
    return mapping


@given(legacy=ITEMS, new=ITEMS, rooms=ROOMS, data=st.data())
def test_packing_is_the_printed_algorithm(
    legacy: list[Prompt], new: list[Prompt], rooms: list[Room], data: st.DataObject
) -> None:
    new = [Prompt(item.name + 100, item.num_tokens, item.arrival_at) for item in new]
    plain = deepcopy(rooms)
    expected = greedy_dispatch(legacy, plain) + greedy_dispatch(new, plain)
    shuffled = data.draw(st.permutations(legacy)), data.draw(st.permutations(new))
    order = data.draw(st.permutations(range(len(rooms))))
    assigned = Pbaa().pack(*shuffled, [deepcopy(rooms[i]) for i in order])
    assert [(a.request.name, a.unit.unit) for a in assigned] == expected
    no_hits = Pbaa().pack(legacy, new, deepcopy(rooms), hits=lambda r: {})
    assert [(a.request.name, a.unit.unit) for a in no_hits] == expected


def hits_of(item: Prompt, rooms: list[Room], hits: dict[int, int]) -> dict[UnitId, int]:
    found = {room.unit: hits.get(item.name + room.unit.unit) for room in rooms}
    return {unit: hit for unit, hit in found.items() if hit is not None}


@given(new=ITEMS, rooms=ROOMS, hits=st.dictionaries(st.integers(0, 30), st.integers(-9, 200)))
def test_cache_aware_packing_is_the_scan_over_all_units(
    new: list[Prompt], rooms: list[Room], hits: dict[int, int]
) -> None:
    plain = deepcopy(rooms)
    expected = []
    for r in sorted(new, key=lambda r: (-r.num_tokens, r.arrival_at, r.key)):
        cached = hits_of(r, plain, hits)
        ranks = [
            (r.num_tokens - min(max(cached.get(d.unit, 0), 0), r.num_tokens) - d.capacity, d.unit)
            for d in plain
            if d.fits(r.num_tokens)
        ]
        if not ranks:
            continue
        (rank, unit) = min(ranks)
        chosen = next(d for d in plain if d.unit == unit)
        if chosen.capacity > 0:
            chosen.take(r.num_tokens, -rank)
            expected.append((r.name, unit))
    assigned = Pbaa().pack([], new, rooms, hits=lambda r: hits_of(r, rooms, hits))
    assert [(a.request.name, a.unit) for a in assigned] == expected


@given(new=ITEMS, rooms=ROOMS, hits=st.dictionaries(st.integers(0, 30), st.integers(-9, 200)))
def test_packing_keeps_the_laws_of_capacity_and_memory(
    new: list[Prompt], rooms: list[Room], hits: dict[int, int]
) -> None:
    before = {room.unit: (room.capacity, room.num_free_blocks) for room in rooms}
    assigned = Pbaa().pack([], new, rooms, hits=lambda r: hits_of(r, rooms, hits))
    assert len({a.request.name for a in assigned}) == len(assigned)
    for room in rooms:
        given_here = [a for a in assigned if a.unit == room.unit]
        capacities = [before[room.unit][0], *(a.capacity for a in given_here)]
        assert all(capacity > 0 for capacity in capacities[:-1])
        assert all(earlier >= later for earlier, later in pairwise(capacities))
        used = sum(blocks_for(a.request.num_tokens, 10) for a in given_here)
        assert used <= before[room.unit][1]


# --- Algorithm 3 --------------------------------------------------------------------------


def schedule_batch(batch: Sequence[Prompt], units: list[DecodeUnit]) -> list[tuple[int, int]]:
    """Algorithm 3 as printed, with KV room, the mask from four units on."""
    mapping = []
    for r in sorted(batch, key=lambda r: (-r.num_tokens, r.arrival_at, r.key)):
        able = [n for n in units if min(blocks_for(r.num_tokens + 1, 10), 25) <= n.num_free_blocks]
        if not able:
            continue
        bound = inf
        if len(units) >= 4:
            q1, _, q3 = statistics.quantiles([n.kv_tokens for n in units], n=4, method="inclusive")
            bound = q3 + 1.5 * (q3 - q1)
        safe = [n for n in able if n.kv_tokens <= bound] or able
        best = min(safe, key=lambda n: (n.num_requests, n.kv_tokens, n.unit))
        mapping.append((r.name, best.unit.unit))
        best.take(r)
    return mapping


@given(batch=ITEMS, units=UNITS, data=st.data())
def test_placement_is_the_printed_algorithm(
    batch: list[Prompt], units: list[DecodeUnit], data: st.DataObject
) -> None:
    expected = schedule_batch(batch, deepcopy(units))
    order = data.draw(st.permutations(range(len(units))))
    shuffled = data.draw(st.permutations(batch))
    choices = IqrLex().place(shuffled, [deepcopy(units[i]) for i in order])
    assert [(c.request.name, c.unit.unit) for c in choices] == expected


@given(
    batch=ITEMS,
    units=UNITS,
    policy=st.sampled_from([IqrLex, Lex, MinCost, LeastKv, RoundRobinPlacement]),
)
def test_no_placement_promises_a_block_twice_or_leaves_out_who_fits(
    batch: list[Prompt], units: list[DecodeUnit], policy: type[IqrLex]
) -> None:
    choices = policy().place(batch, units)
    placed = {c.request.name for c in choices}
    assert len(placed) == len(choices)
    assert all(unit.num_free_blocks >= 0 for unit in units)
    for item in batch:
        if item.name not in placed:
            wanted = min(blocks_for(item.num_tokens + 1, 10), 25)
            assert all(wanted > unit.num_free_blocks for unit in units)


# --- readiness ----------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["time", "turn", "end", "late", "silent"]),
        st.integers(0, 2),
        st.floats(0.001, 0.4),
    ),
    max_size=60,
)


@given(events=EVENTS)
def test_no_instance_is_released_twice_for_one_dispatch(
    events: list[tuple[str, int, float]],
) -> None:
    """Between two dispatches to an instance lies its EndForward, or the fixed interval."""
    policy, names, now = StaggeredBatch(SbsParams(default_pass_time=0.1)), ["a", "b", "c"], 0.0
    for name in names:
        policy.join(name)
    last: dict[str, tuple[int, float]] = {}
    ended: set[int] = set()
    given_up: dict[str, float] = {}
    next_id = 1
    for kind, which, value in events:
        name = names[which]
        now += value
        for expiry in policy.expire(now=now):
            assert last[expiry.worker_id][0] == expiry.dispatch_id
            assert now - last[expiry.worker_id][1] >= 5 * 0.1 - 1e-9
            given_up.setdefault(expiry.worker_id, now)
        if kind == "end" and name in last:
            policy.ended(name, (last[name][0],), 0.1, now=now)
            ended.add(last[name][0])
            given_up.pop(name, None)
        elif kind == "late" and name in last:
            policy.ended(name, tuple(range(1, last[name][0])), 0.1, now=now)
            given_up.pop(name, None)
        elif kind == "turn":
            loads = [InstanceLoad(n, 1, 1, 1, 1, True, True) for n in names]
            turns = policy.turns(loads, 9, now=now)
            if turns:
                turn = turns[0]
                if turn.worker_id in last and last[turn.worker_id][0] not in ended:
                    assert turn.worker_id in given_up
                    assert now - last[turn.worker_id][1] >= 0.1 - 1e-9
                if turn.rule != TOP_UP and last:
                    newest = max(at for _, at in last.values())
                    assert now - newest >= 0.1 / 3 - 1e-9 or turn.rule == TOP_UP
                policy.dispatched(turn, next_id, now=now)
                last[turn.worker_id] = next_id, now
                next_id += 1


@given(events=EVENTS)
def test_a_wakeup_is_always_ahead_and_never_missed(events: list[tuple[str, int, float]]) -> None:
    """Asked again at the time it named, the policy has something to say."""
    policy, names, now = StaggeredBatch(SbsParams(default_pass_time=0.1)), ["a", "b", "c"], 0.0
    for name in names:
        policy.join(name)
    last: dict[str, int] = {}
    loads = [InstanceLoad(n, 1, 0, 1, 1, True, True) for n in names]
    for dispatch_id, (kind, which, value) in enumerate(events):
        name = names[which]
        now += value
        policy.expire(now=now)
        turns = policy.turns(loads, 9, now=now)
        if kind == "turn" and turns:
            policy.dispatched(turns[0], dispatch_id, now=now)
            last[turns[0].worker_id] = dispatch_id
        elif kind == "end" and name in last:
            policy.ended(name, (last[name],), 0.1, now=now)
        elif not turns:
            at = policy.wakeup(loads, 9, now=now)
            if at is not None:
                assert at > now
                assert policy.expire(now=at) or policy.turns(loads, 9, now=at)
                now = at
