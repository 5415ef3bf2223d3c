"""The bound of VTC: two tenants that both wait are served nearly alike, whatever the rest does."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import UnitId
from headway.core.scheduler.places import InWindow, OnUnit
from headway.core.scheduler.windows import TenantWindows
from headway.core.token_counters import OUTPUT_WEIGHT
from headway.policies.packing.flow_control import FlowControl
from tests.fakes.waiting import waiting

TENANTS = ("a", "b", "c", "d")
MOST_TOKENS, MOST_OUTPUT = 50, 40
MOST = MOST_TOKENS + OUTPUT_WEIGHT * MOST_OUTPUT

adds = st.tuples(st.sampled_from(TENANTS), st.integers(1, MOST_TOKENS))
steps = st.one_of(adds, st.integers(0, MOST_OUTPUT))


@given(st.lists(steps, max_size=200), st.sampled_from((0, 0, 30, 200)))
def test_who_waits_is_served_as_much_as_any_other_who_waits(
    plan: list[object], credit: int
) -> None:
    """Each whole number serves one request, which then has so many output tokens."""
    made, names = TenantWindows(FlowControl(num_cycles=1 << 30)), count()
    made.counters.credit = float(credit)
    served = dict.fromkeys(TENANTS, 0.0)
    since: dict[tuple[str, str], tuple[float, float]] = {}
    for step in plan:
        if isinstance(step, tuple):
            tenant, num_tokens = step
            made.add(waiting(next(names), tenant, num_tokens))
        elif made.num_admitted:
            assert isinstance(step, int)
            entry = made.in_turn(made.admitted)[0]
            made.dispatched([entry])
            made.charges.settle(entry, step)
            served[entry.tenant] += entry.num_tokens + OUTPUT_WEIGHT * step
        held = {entry.tenant for entry in made.admitted}
        for one in TENANTS:
            for other in TENANTS:
                pair = (one, other)
                if one >= other or not {one, other} <= held:
                    since.pop(pair, None)
                    continue
                before = since.setdefault(pair, (served[one], served[other]))
                gained = served[one] - before[0] - (served[other] - before[1])
                assert abs(gained) <= 2 * MOST + credit


attempts = st.lists(
    st.tuples(st.sampled_from(("lost", "cancelled", "late", "given back")), st.integers(0, 30)),
    max_size=4,
)


@given(attempts, st.integers(1, 50), st.floats(0.0, 200.0), st.sampled_from((1.0, 2.0)))
def test_a_request_is_charged_for_its_prompt_and_its_output_once_however_it_ends(
    ends: list[tuple[str, int]], num_prompt: int, expected: float, share: float
) -> None:
    """Each attempt but the last ends early; its worker says so at once, late or never."""
    made, num_output = TenantWindows(FlowControl(num_cycles=1 << 30)), 0
    for attempt, (end, num_new) in enumerate((*ends, ("finished", 7))):
        entry = waiting(attempt, "a", num_prompt, share=share)
        assert entry.request is not None
        entry.request_id = "r"
        entry.request = replace(entry.request, attempt=attempt, predicted_output_tokens=expected)
        made.add(entry)
        made.dispatched([entry])
        entry.place = OnUnit(UnitId("w", 0))
        if end == "given back":
            entry.place = InWindow()
            made.take_back(entry)
            made.dispatched([entry])
            entry.place = OnUnit(UnitId("w", 0))
        num_output += num_new
        if end in ("cancelled", "finished"):
            made.charges.settle(entry, num_output, may_go_on=end == "cancelled")
        made.charges.ended(entry)
        if end == "late":
            made.charges.reported(entry.key, num_output)
            made.charges.reported(entry.key, num_output)
    served = num_prompt + OUTPUT_WEIGHT * num_output
    assert made.counters.of("a") * share == pytest.approx(served)
