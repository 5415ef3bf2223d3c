"""Which class a request has: what it asks for, within what its key may."""

from __future__ import annotations

import pytest

from headway.core.gateway.class_rules import ClassRules
from headway.errors import Code, HeadwayError
from headway.service_class import ServiceClass, ServiceClasses, shipped_classes


def name_of(found: ServiceClass | None) -> str:
    return "" if found is None else found.name


def asked(name: str, priority: int | None = None, *, own: str = "", allowed: str = "") -> str:
    asking = ClassRules(shipped_classes())
    return name_of(asking.find(name, priority, own=own, allowed=allowed.split()))


def test_a_key_without_bounds_asks_for_any_class() -> None:
    assert asked("") == ""
    assert asked("batch") == "batch"
    assert asked("", own="agent") == "agent"
    assert asked("", 10, own="agent") == "batch"
    with pytest.raises(HeadwayError, match="interactive, agent, batch"):
        asked("bathc")


def test_a_key_with_bounds_asks_for_its_classes_and_its_own() -> None:
    assert asked("agent", allowed="agent") == "agent"
    assert asked("batch", own="batch", allowed="agent") == "batch"
    assert asked("", own="batch", allowed="agent") == "batch"
    with pytest.raises(HeadwayError, match="may ask for agent, batch") as caught:
        asked("interactive", own="batch", allowed="agent")
    assert caught.value.code is Code.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("priority", "found"), [(-9, "agent"), (0, "agent"), (5, "agent"), (99, "batch")]
)
def test_a_priority_means_the_nearest_class_that_it_may(priority: int, found: str) -> None:
    assert asked("", priority, allowed="agent batch") == found
    assert asked("", priority, own="batch", allowed="agent") == found


def test_a_default_that_the_key_may_not_have_means_the_nearest_that_it_may() -> None:
    rules = ClassRules(ServiceClasses(shipped_classes().by_name, default="interactive"))
    for allowed, found in (((), "interactive"), (("interactive", "batch"), "interactive")):
        assert name_of(rules.find("", None, own="", allowed=allowed)) == found
    assert name_of(rules.find("", None, own="", allowed=("batch", "agent"))) == "agent"
    assert name_of(rules.find("", None, own="batch", allowed=("agent",))) == "batch"


def test_a_deadline_that_nobody_gave_the_key_is_bounded() -> None:
    asking = ClassRules(shipped_classes(), 300.0)
    for name, priority in (("batch", None), ("", 10)):
        found = asking.find(name, priority, own="", allowed=())
        assert found is not None
        assert (found.deadline, found.yields) == (300.0, True)
        for own, allowed in (("batch", ()), ("", ("batch",))):
            given = asking.find(name, priority, own=own, allowed=allowed)
            assert given is not None
            assert given.deadline == 86_400.0
