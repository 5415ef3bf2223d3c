"""A table of units keeps its orders from one placement to the next, and places as a list does."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import UnitId
from headway.cost.buckets import NUM_BUCKETS
from headway.policies import registry
from headway.policies.placement import DecodeUnit, Placement
from headway.policies.placement.ahead import LoadAhead
from headway.policies.placement.table import UnitTable
from tests.fakes.candidates import Prompt

SIZE, BLOCKS, STEPS = 16, 64, 4
PLACEMENTS = ("iqr-lex", "lex", "least-kv", "pascal", "min-cost", "star", "bucket-balance")
SMALL = st.integers(0, 5)


@st.composite
def unit(draw: st.DrawFn, name: str) -> DecodeUnit:
    loads = np.array([100.0 * draw(SMALL) for _ in range(STEPS + 1)])
    return DecodeUnit(
        UnitId(name, 0),
        draw(SMALL),
        100 * draw(SMALL),
        draw(st.integers(0, BLOCKS)),
        BLOCKS,
        SIZE if name < "decode-4" else SIZE // 2,
        num_reasoning=draw(SMALL),
        is_on_schedule=draw(st.booleans()),
        bucket_counts=[draw(st.integers(0, 2)) for _ in range(NUM_BUCKETS)],
        reserved_tokens=draw(st.sampled_from((0.0, 300.0))),
        ahead=LoadAhead(loads, 32),
    )


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[list[DecodeUnit], list[Prompt]]]:
    """Units that have changed, and requests to place, round by round; at first all units."""
    names = [f"decode-{n}" for n in range(draw(st.integers(1, 7)))]
    found = []
    for number in range(draw(st.integers(1, 4))):
        changed = names if not number else draw(st.lists(st.sampled_from(names), unique=True))
        requests = [
            Prompt(
                10 * number + n,
                draw(st.integers(1, 500)),
                float(draw(SMALL)),
                float(draw(st.sampled_from((0, 20, 90)))),
                draw(st.integers(0, NUM_BUCKETS - 1)),
                (UnitId(names[0], 0),) if draw(st.booleans()) else (),
            )
            for n in range(draw(st.integers(0, 3)))
        ]
        found.append(([draw(unit(name)) for name in changed], requests))
    return found


@pytest.mark.parametrize("name", PLACEMENTS)
@settings(max_examples=40)
@given(rounds())
def test_it_places_as_a_list_of_the_same_units_does(
    name: str, found: list[tuple[list[DecodeUnit], list[Prompt]]]
) -> None:
    by_table: Placement = registry.make("placement", name)
    by_list: Placement = registry.make("placement", name)
    if not by_list.reads_ahead:  # then nothing is predicted
        for changed, _ in found:
            for each in changed:
                each.ahead = None
    listed = deepcopy(found[0][0])
    table = UnitTable(found[0][0])
    for changed, requests in found:
        for each in changed:
            at = [other.unit for other in listed].index(each.unit)
            listed[at] = deepcopy(each)
            table.update(each)
        assert by_table.place(requests, table) == by_list.place(requests, listed)


def test_costs_that_are_learned_anew_leave_no_old_order_behind() -> None:
    one, other = (
        DecodeUnit(UnitId(name, 0), num_requests, kv_tokens, BLOCKS, BLOCKS, SIZE)
        for name, num_requests, kv_tokens in (("a", 1, 0), ("b", 0, 400))
    )
    request = Prompt(1, 16)
    table = UnitTable([one, other])
    for c, d, best in ((1.0, 1e-6, "b"), (1e-6, 1.0, "a")):
        policy: Placement = registry.make("placement", "min-cost", c=c, d=d)
        (choice,) = policy.place([request], table)
        assert choice.unit.worker_id == best
