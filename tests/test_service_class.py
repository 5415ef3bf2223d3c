"""Classes of requests: the shipped ones, and what a table may not say."""

from __future__ import annotations

import pytest

from headway.errors import HeadwayError
from headway.service_class import ServiceClass, parse_classes, shipped_classes


def test_the_shipped_classes_go_from_urgent_to_patient() -> None:
    classes = shipped_classes()
    assert [*classes.by_name] == ["interactive", "agent", "batch"]
    batch = classes.find("batch")
    assert batch is not None
    assert batch.yields
    assert 0 < batch.floor < 0.5
    assert classes.find("") is None
    assert classes.default == ""


@pytest.mark.parametrize(
    ("priority", "name"),
    [
        (-5, "interactive"),
        (0, "interactive"),
        (1, "agent"),
        (9, "agent"),
        (10, "batch"),
        (99, "batch"),
    ],
)
def test_vllms_priority_names_a_class(priority: int, name: str) -> None:
    found = shipped_classes().of_priority(priority)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "classes"),
        ("[[classes]]\nttft = 1", "classes.name"),
        ('[[classes]]\nname = "a"\nttft = -1', "ttft"),
        ('[[classes]]\nname = "a"\nyields = 1', "true or false"),
        ('[[classes]]\nname = "a"\n[[classes]]\nname = "a"', "different"),
        ('[[classes]]\nname = "a"\nfloor = 0.4\n[[classes]]\nname = "b"\nfloor = 0.2', "together"),
        ('default = "b"\n[[classes]]\nname = "a"', "one of a"),
        ('[[classes]]\nname = "a"\nspeed = 1', "speed"),
        ("[[", "not TOML"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(text: str, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        parse_classes(text, "mine.toml")


def test_an_unknown_class_is_refused_with_those_there_are() -> None:
    with pytest.raises(HeadwayError, match="interactive, agent, batch"):
        shipped_classes().find("bathc")


def test_what_fails_has_kept_its_first_tokens_at_most() -> None:
    promise = ServiceClass("a", ttft=1.0, ttfat=2.0, tpot=0.1, deadline=9.0)
    late = {"ttft": 0.5, "ttfat": None, "tpot": 0.01, "e2e": 3.0}
    assert promise.kept_by_failed(late) == {
        "ttft": True,
        "ttfat": False,
        "tpot": False,
        "deadline": False,
    }
    assert ServiceClass("b").kept_by_failed(late) == {}


def test_who_leaves_has_been_kept_waiting_or_not() -> None:
    promise = ServiceClass("a", ttft=1.0, ttfat=2.0, tpot=0.1, deadline=9.0)
    latencies = {"ttft": 0.5, "ttfat": None, "tpot": 0.2, "e2e": 3.0}
    assert promise.kept_until(latencies, 1.5) == {"ttft": True, "tpot": False}
    assert promise.kept_until(latencies, 3.0) == {"ttft": True, "tpot": False, "ttfat": False}
    nothing = dict.fromkeys(latencies)
    assert promise.kept_until(nothing, 0.9) == {}
    assert promise.kept_until(nothing, 1.1) == {"ttft": False}
