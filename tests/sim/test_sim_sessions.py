"""Closed loops: when turns come, whom they wait for, and what a task takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.experiment import Conditions, Run, cluster_spec, simulate
from headway.sim.failures import Failure
from headway.sim.records import Record
from headway.sim.scenario import Scenario, parse_scenario
from headway.sim.sessions import SessionLoad
from headway.sim.summary import task_figures
from headway.sim.worker import InstanceSpec
from headway.workload.agents import make_sessions
from headway.workload.session import Session, SessionTurn
from headway.workload.sessions import written

PROFILE = load_profile("llama-8b-h100")
CLUSTER = """
[[instances]]
role = "unified"
count = 2
profile = "llama-8b-h100"
[workload.sessions]
"""


def turn(pause: float = 0.0, *children: int, ids: tuple[int, ...] = ()) -> SessionTurn:
    return SessionTurn(pause, 1000, 20, ids, children)


def run(
    sessions: list[Session],
    *,
    preset: str = "sbs",
    count: int = 2,
    gateways: int = 1,
    failures: tuple[Failure, ...] = (),
) -> Run:
    instances = [(InstanceSpec(Role.UNIFIED, PROFILE), count)]
    spec = cluster_spec(PRESETS[preset], Conditions(instances, num_gateways=gateways))
    return simulate(spec, SessionLoad(sessions), failures=failures)


def by_name(found: Run) -> dict[str, Record]:
    return {record.request_id: record for record in found.records}


def ended_at(record: Record) -> float:
    assert record.last_token_at is not None
    return record.last_token_at


def read(text: str, folder: Path = Path()) -> Scenario:
    return parse_scenario(CLUSTER + text, "test", folder)


def test_a_turn_comes_after_the_end_of_the_one_before_and_its_pause() -> None:
    found = by_name(run([Session(0, "agent", 1.0, (turn(), turn(2.5)))]))
    first, second = found["agent-0.0"], found["agent-0.1"]
    assert first.arrival_at == 1.0
    assert second.arrival_at == pytest.approx(ended_at(first) + 2.5, abs=0.01)


def test_a_turn_waits_for_all_children_of_the_one_before() -> None:
    quick = Session(1, "sub", None, (turn(),))
    slow = Session(2, "sub", None, (turn(), turn(7.0)))
    parent = Session(0, "agent", 0.0, (turn(0.0, 1, 2), turn(0.5)))
    found = run([parent, quick, slow])
    records = by_name(found)
    end = ended_at(records["agent-0.0"])
    for number in (1, 2):
        assert records[f"sub-{number}.0"].arrival_at == pytest.approx(end, abs=0.01)
    last = ended_at(records["sub-2.1"])
    assert records["agent-0.1"].arrival_at == pytest.approx(last + 0.5, abs=0.01)
    (task,) = found.tasks
    assert (task.session, task.num_turns, task.error) == (0, 5, "")
    assert task.seconds == pytest.approx(ended_at(records["agent-0.1"]), abs=0.01)


def test_a_task_ends_with_the_children_of_its_last_turn() -> None:
    child = Session(1, "sub", None, (turn(), turn(9.0)))
    found = run([Session(0, "agent", 0.0, (turn(0.0, 1),)), child])
    (task,) = found.tasks
    assert task.ended_at == pytest.approx(ended_at(by_name(found)["sub-1.1"]), abs=0.01)


def test_a_session_finds_its_prompt_cached_where_it_was() -> None:
    ids = tuple(range(10))
    long = [SessionTurn(1.0, 4000 + 50 * place, 20, ids) for place in range(4)]
    found = run([Session(0, "agent", 0.0, tuple(long))], count=4)
    assert found.num_asked_tokens == 4000 + 4050 + 4100 + 4150
    assert 0.7 < found.hit_share < 0.75  # all but the first prompt, and what is new


@pytest.mark.parametrize("preset", ["vllm-like", "lmetric", "sbs", "headway"])
def test_the_death_of_an_instance_costs_no_turn(preset: str) -> None:
    sessions = make_sessions("agents", 3, 4, 0.5)
    failures = (Failure("unified-1", 20.0, back_after=5.0),)
    found = run(sessions, preset=preset, failures=failures)
    assert sum(record.finished for record in found.records) == SessionLoad(sessions).num_requests
    assert [task.error for task in found.tasks] == [""] * 4


def test_a_turn_that_is_lost_ends_its_session_and_not_its_parent() -> None:
    long = SessionTurn(0.0, 1000, 4000)
    parent = Session(0, "agent", 0.0, (turn(0.0, 1), turn()))
    child = Session(1, "sub", None, (long, turn()))
    asked = run([parent, child], gateways=2)
    assert len(asked.records) == 4
    dies = (Failure("gateway-2", 5.0),)  # the second request is the child's first
    found = run([parent, child], gateways=2, failures=dies)
    assert {r.request_id for r in found.records} == {"agent-0.0", "sub-1.0", "agent-0.1"}
    assert "gateway-2 died" in found.tasks[0].error
    figures = task_figures([*found.tasks, *asked.tasks])
    assert (figures["num_tasks"], figures["tasks_cut"]) == (2, 0.5)
    assert figures["task_mean"] == asked.tasks[0].seconds


def test_requests_name_their_session_and_its_end_where_asked() -> None:
    sessions = [Session(4, "agent", 0.0, (turn(), turn(1.0)))]
    named, ends, nameless = (
        SessionLoad(sessions),
        SessionLoad(sessions, says_end=True),
        SessionLoad(sessions, names=False, says_end=True),
    )
    said = [
        [(r.session_id, r.ends_session) for r in load.replayed(1.0)]
        for load in (named, ends, nameless)
    ]
    assert said == [
        [("4", False), ("4", False)],
        [("4", False), ("4", True)],
        [("", False), ("", False)],
    ]


def test_children_may_have_the_name_of_who_started_by_itself() -> None:
    sessions = [
        Session(0, "agent", 0.0, (turn(), replace(turn(1.0), children=(1,)))),
        Session(1, "sub", None, (replace(turn(), children=(2,)),)),
        Session(2, "sub", None, (turn(),)),
    ]
    requests = SessionLoad(sessions, says_end=True, by_root=True).replayed(1.0)
    assert {r.session_id for r in requests} == {"0"}
    assert [r.request_id for r in requests if r.ends_session] == ["agent-0.1"]


def test_an_open_loop_has_the_rate_that_is_asked() -> None:
    load = SessionLoad(make_sessions("aiperf", 1, 20, 1.0))
    requests = load.replayed(4.0)
    instants = [request.arrival_at for request in requests]
    assert instants == sorted(instants)
    assert (instants[0], len(instants)) == (0.0, load.num_requests)
    assert (len(instants) - 1) / instants[-1] == pytest.approx(4.0)


def test_a_load_that_grows_keeps_its_pauses() -> None:
    load = SessionLoad(make_sessions("agents", 1, 5, 1.0))
    faster = load.faster(2.0)
    assert faster.starts == pytest.approx([at / 2 for at in load.starts])
    assert [s.turns for s in faster.sessions] == [s.turns for s in load.sessions]


# --- scenarios ------------------------------------------------------------------------


def test_a_scenario_has_sessions_of_a_kind() -> None:
    scenario = read('kind = "agents"\nsessions = 5\nrate = 0.5\nturns = 3\nsays_end = true\n')
    load = scenario.workload.load(7)
    assert isinstance(load, SessionLoad)
    assert load.says_end
    assert len(load.starts) == 5
    assert load.sessions == scenario.workload.load(7).sessions  # type: ignore[union-attr]
    with pytest.raises(HeadwayError, match="turns of sessions come when others have ended"):
        scenario.workload.requests(7)


def test_a_scenario_has_sessions_of_a_file(tmp_path: Path) -> None:
    sessions = make_sessions("skewed", 2, 6, 0.5)
    (tmp_path / "sessions.jsonl").write_text("\n".join(written(sessions)))
    text = 'file = "sessions.jsonl"\n'
    load = read(text, tmp_path).workload.load(1)
    assert load == SessionLoad(sessions)
    few = read(text + "sessions = 2\nrate = 3\n", tmp_path).workload.load(1)
    assert isinstance(few, SessionLoad)
    assert len(few.starts) == 2
    assert list(few.starts) != load.starts[:2]


def test_a_scenario_has_an_open_loop_of_sessions() -> None:
    text = 'kind = "aiperf"\nsessions = 3\nrate = 1\nrequests_per_s = 4.65\n'
    requests = list(read(text).workload.requests(1))
    span = requests[-1].arrival_at - requests[0].arrival_at
    assert (len(requests) - 1) / span == pytest.approx(4.65)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "keys is []; it must be with a kind or with a file"),
        ('kind = "agents"\nfile = "f"', "with a kind or with a file, one of them"),
        ('kind = "robots"', "workload.sessions.kind is 'robots'; it must be one of agents"),
        ('kind = "agents"\nsessions = 5', "workload.sessions.rate is None"),
        ('kind = "agents"\nrate = 5', "workload.sessions.sessions is None"),
        ('kind = "agents"\nrate = 0\nsessions = 5', "workload.sessions.rate is 0"),
        ('kind = "agents"\nrate = -1\nsessions = 5', "workload.sessions.rate is -1"),
        ('kind = "agents"\nrate = 1\nsessions = 5\nfork = 2', "workload.sessions.fork is 2"),
        ('kind = "agents"\nrate = 1\nsessions = 5\nnamed = 2', "named is 2; it must be true or"),
        ('kind = "agents"\nsesions = 5', "a key of workload.sessions is 'sesions'"),
        ('file = "nowhere.jsonl"', "cannot read nowhere.jsonl"),
        ('file = "f"\nturns = 3', "turns is 3; it must be left out: the file has the sessions"),
        ('file = ""', "workload.sessions.file is ''"),
    ],
)
def test_what_no_sessions_can_be_made_of_is_refused(text: str, said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        read(text)
    assert said in refused.value.message


def test_sessions_stand_alone_in_a_workload() -> None:
    text = CLUSTER.replace("[workload.sessions]", "[workload]\nrate = 2\n[workload.sessions]")
    with pytest.raises(HeadwayError, match="sessions alone, or without them"):
        parse_scenario(text + 'kind = "agents"\n', "test")
