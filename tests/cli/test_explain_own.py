"""``headway explain`` of a request that went where its prompt was: hits, debts, waits, who else."""

from __future__ import annotations

import pytest

from cli.explain import decisions_about
from headway.cluster import UnitId
from headway.core.scheduler.events import Chosen, Considered, Decision
from headway.errors import HeadwayError
from headway.policies.dispatch.protocol import OwnUnit
from headway.request import StreamKey
from services.scheduler.explanations import decision_line

HERE, THERE = UnitId("p1", 0), UnitId("p2", 1)
OWN = OwnUnit(HERE, 12_000, 800, 0.25, THERE, 1.5)


def told(own: OwnUnit | None) -> str:
    considered = (Considered(HERE, (2, 90), 5), Considered(THERE, (0, 90), 50))
    chosen = (Chosen(StreamKey("g", 1), "r", HERE, (3.0,), 0.02, own),)
    decision = Decision("dispatch", 1.0, "m", "own", considered, chosen, 0)
    (explained,) = decisions_about("r", [decision_line(decision)])
    return explained.text()


def test_it_says_what_the_unit_held_and_owed_and_who_came_second() -> None:
    text = told(OWN)
    assert "p1/0 held 12,000 tokens of the prompt, and owed 800 prompt tokens to others" in text
    assert "cost 0.2500 s; the runner-up was p2/1 at 1.5000 s" in text
    assert "host memory" not in text
    assert "could not go" not in text


def test_it_says_what_lay_in_host_memory_and_how_long_it_might_have_waited() -> None:
    text = told(OWN._replace(num_host_tokens=4000, longest_wait=2.0))
    assert "12,000 tokens of the prompt, 4,000 of them in host memory" in text
    assert "went at once; it would have waited for this unit for 2.000 s at most" in text


def test_it_says_for_how_long_the_unit_was_awaited() -> None:
    text = told(OWN._replace(wait=0.1, longest_wait=2.0))
    assert "turn was expected in 0.100 s, and after 2.000 s it would have gone anywhere" in text


def test_it_says_that_nobody_else_could_take_it() -> None:
    assert "no other unit could take it" in told(OwnUnit(HERE, 512, 0, 0.1))


def test_of_a_request_without_an_own_unit_nothing_is_said() -> None:
    assert "held" not in told(None)


def test_a_reason_of_another_version_is_refused() -> None:
    line = (
        '{"question":"dispatch","at":1,"rule":"own","left":0,"considered":[],'
        '"chosen":[["r","p1/0",[1],0.1,{"hits":3}]]}'
    )
    with pytest.raises(HeadwayError, match="line 1 is no decision"):
        list(decisions_about("r", [line]))
