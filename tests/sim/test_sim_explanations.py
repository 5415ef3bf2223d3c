"""A recorded run says why a request went where it went."""

from __future__ import annotations

import io
import json

import pytest

from cli.explain import decisions_about
from headway.cluster import Role, UnitId
from headway.core.scheduler.events import Chosen, Decision
from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.request import CLIENT_ID_END, StreamKey
from headway.sim.experiment import Conditions, cluster_spec, simulate
from services.scheduler.explanations import MOST_LINES, lines_about, write_decisions
from tests.fakes.sim_clusters import instance, poisson


def recorded() -> list[str]:
    conditions = Conditions(((instance(Role.PREFILL), 2), (instance(Role.DECODE), 2)))
    spec = cluster_spec(PRESETS["sbs"], conditions)
    file = io.StringIO()
    write_decisions(simulate(spec, poisson(30, 8.0, 1), keeps_decisions=True).decisions, file)
    return file.getvalue().splitlines()


def test_each_request_was_dispatched_and_placed_once() -> None:
    lines = recorded()
    for number in range(30):
        told = list(decisions_about(f"r{number}", lines))
        assert [t.question for t in told] == ["dispatch", "placement"]


def test_it_says_who_else_was_considered_and_what_won() -> None:
    dispatch, placement = decisions_about("r7", recorded())
    assert dispatch.unit.startswith("prefill-")
    assert next(iter(placement.others)).unit == placement.unit
    assert len(placement.others) == 2
    text = placement.text()
    assert "placement by iqr-lex" in text
    assert "→ decode-" in text
    assert "free blocks" in text


def test_a_client_reads_nothing_about_others_but_their_number() -> None:
    conditions = Conditions(((instance(Role.PREFILL), 1), (instance(Role.DECODE), 1)))
    spec = cluster_spec(PRESETS["sbs"], conditions)
    run = simulate(spec, poisson(30, 40.0, 1), keeps_decisions=True)
    together = [d for d in run.decisions if len(d.chosen) > 1]
    own = together[0].chosen[0].request_id
    lines = lines_about(own, run.decisions)
    names = [each[0] for line in lines for each in json.loads(line)["chosen"]]
    assert set(names) == {own}
    told = list(decisions_about(own, lines))
    assert len(together[0].chosen) - 1 in [each.num_beside for each in told]


def test_a_line_that_is_no_decision_is_refused_by_its_number() -> None:
    with pytest.raises(HeadwayError, match="line 2 is no decision"):
        list(decisions_about("r1", ["{}", '{"r1": 3}']))


def test_of_an_id_that_means_thousands_of_requests_the_newest_decisions_are_told() -> None:
    unit, decisions = UnitId("w", 0), list[Decision]()
    for at in range(2 * MOST_LINES):
        chosen = Chosen(StreamKey("g", at), f"mine{CLIENT_ID_END}{at}", unit, (), 0.0)
        decisions.append(Decision("dispatch", float(at), "m", "end-forward", (), (chosen,), 0))
    told = [json.loads(line)["at"] for line in lines_about("mine", decisions)]
    assert told == [float(at) for at in range(MOST_LINES, 2 * MOST_LINES)]
