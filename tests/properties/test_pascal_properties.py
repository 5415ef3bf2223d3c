"""PASCAL's placement against plain readings of Algorithms 1 and 2, on any units."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import UnitId
from headway.policies.placement import Choice, DecodeUnit
from headway.policies.placement.pascal import PascalPlacement, PascalPlacementParams
from tests.fakes.candidates import Prompt

NUM_BLOCKS, BLOCK_SIZE = 25, 10


ITEMS = st.lists(st.tuples(st.integers(1, 90), st.integers(0, 3)), max_size=20).map(
    lambda rows: [Prompt(i, length, float(at)) for i, (length, at) in enumerate(rows)]
)
UNITS = st.lists(
    st.tuples(
        st.integers(0, 3).map(lambda n: 80 * n),  # K: few values, so that ties occur
        st.integers(0, NUM_BLOCKS),
        st.integers(0, 2).map(lambda n: 80 * n),
        st.integers(0, 3),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
).map(
    lambda rows: [
        DecodeUnit(UnitId("w", i), 1, kv, free, NUM_BLOCKS, BLOCK_SIZE, host, r, a, on_schedule)
        for i, (kv, free, host, r, a, on_schedule) in enumerate(rows)
    ]
)


def num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


# --- Algorithm 1 --------------------------------------------------------------------------


def algorithm_1(requests: Sequence[Prompt], units: list[DecodeUnit]) -> list[tuple[int, UnitId]]:
    """Earliest first; who fits nowhere waits."""
    placed = []
    for r in sorted(requests, key=lambda r: (r.arrival_at, r.key)):
        able = [u for u in units if u.num_free_blocks >= num_blocks(r.num_tokens + 1)]
        compliant = [u for u in able if u.is_on_schedule] or able
        if compliant:
            best = min(compliant, key=lambda u: (u.load_tokens, u.unit))
            placed.append((r.name, best.unit))
            best.take(r)
    return placed


@given(requests=ITEMS, units=UNITS, data=st.data())
def test_new_requests_are_placed_as_algorithm_1_reads(
    requests: list[Prompt], units: list[DecodeUnit], data: st.DataObject
) -> None:
    expected = algorithm_1(requests, deepcopy(units))
    asked = data.draw(st.permutations(requests)), data.draw(st.permutations(units))
    choices = PascalPlacement().place(*asked)
    assert [(c.request.name, c.unit) for c in choices] == expected


# --- Algorithm 2 --------------------------------------------------------------------------


def algorithm_2(here: DecodeUnit, units: Sequence[DecodeUnit]) -> UnitId:
    """Before the adaptive rule."""
    compliant = [u for u in units if u.is_on_schedule]
    if compliant:
        load = {u.unit: u.num_reasoning for u in units}
    else:
        load = {u.unit: u.num_reasoning + u.num_fresh_answering for u in units}
    ranked = sorted(
        compliant or units, key=lambda u: (load[u.unit], u.load_tokens, u is not here, u.unit)
    )
    return ranked[0].unit


def goes_to(choice: Choice[Prompt] | None, here: DecodeUnit) -> UnitId:
    return here.unit if choice is None else choice.unit


@given(units=UNITS, num_tokens=st.integers(1, 200), data=st.data())
def test_answers_are_placed_as_algorithm_2_reads(
    units: list[DecodeUnit], num_tokens: int, data: st.DataObject
) -> None:
    here = data.draw(st.sampled_from(units))
    policy = PascalPlacement(PascalPlacementParams(adaptive=False))
    choice = policy.boundary(Prompt(0, num_tokens), here, data.draw(st.permutations(units)))
    assert goes_to(choice, here) == algorithm_2(here, units)


@given(units=UNITS, num_tokens=st.integers(1, 200), data=st.data())
def test_the_adaptive_rule_only_ever_keeps_an_answer_where_it_has_room(
    units: list[DecodeUnit], num_tokens: int, data: st.DataObject
) -> None:
    request, here = Prompt(0, num_tokens), data.draw(st.sampled_from(units))
    always = PascalPlacement(PascalPlacementParams(adaptive=False)).boundary(request, here, units)
    adaptive = PascalPlacement().boundary(request, here, units)
    free = {u.unit: u.num_free_blocks - num_blocks(u.waiting_tokens) for u in units}
    wanted = min(num_blocks(num_tokens + 1), NUM_BLOCKS)
    spare = 0.1 * NUM_BLOCKS
    able = {u.unit for u in units if free[u.unit] - (1 if u is here else wanted) >= spare}
    chosen = here.unit if always is None else always.unit
    if chosen in able or not able:
        assert adaptive == always
    elif here.unit in able:
        assert adaptive is None
    else:
        assert adaptive is not None
        assert adaptive.unit in able


@given(units=UNITS, data=st.data())
def test_asking_where_to_answer_changes_no_unit(
    units: list[DecodeUnit], data: st.DataObject
) -> None:
    before, here = deepcopy(units), data.draw(st.sampled_from(units))
    PascalPlacement().boundary(Prompt(0, 50), here, units)
    assert units == before
