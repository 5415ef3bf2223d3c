"""The bound of VTC: two tenants that both wait are served nearly alike, whatever the rest does."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

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
            made.settle(entry, step)
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
