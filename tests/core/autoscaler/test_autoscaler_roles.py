"""What changes its role instead of going, and what that leaves to start and to drain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.autoscaler.core import RoleChange, role_changes

COUNTS = st.dictionaries(
    st.sampled_from(["prefill", "decode", "convertible", "unified"]), st.integers(0, 9)
)


def test_a_pool_that_shrinks_gives_to_one_that_grows() -> None:
    changes = role_changes({"prefill": 4, "decode": 1}, {"prefill": 1, "decode": 3})
    assert changes == [RoleChange("prefill", "decode", 2)]


def test_nothing_changes_where_both_grow_or_a_role_is_unknown() -> None:
    assert role_changes({"prefill": 1, "decode": 1}, {"prefill": 2, "decode": 2}) == []
    assert role_changes({"prefill": 3}, {"prefill": 1, "decode": 3}) == []


def test_a_convertible_decoder_stays_what_it_is() -> None:
    assert role_changes({"convertible": 2, "decode": 1}, {"convertible": 1, "decode": 2}) == []


@given(found=COUNTS, wanted=COUNTS)
def test_a_change_never_overshoots_what_is_wanted(
    found: dict[str, int], wanted: dict[str, int]
) -> None:
    after = dict(found)
    for source, target, number in role_changes(found, wanted):
        assert number > 0
        after[source] -= number
        after[target] += number
    assert sum(after.values()) == sum(found.values())
    for role, number in after.items():
        goal = wanted.get(role, found[role])
        low, high = sorted((found[role], goal))
        assert low <= number <= high
