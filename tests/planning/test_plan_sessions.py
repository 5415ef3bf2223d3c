"""Plans whose load is sessions: they run on the cores, and keep what turns share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import main
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.sim.network import NetworkParams
from headway.sim.sessions import SessionLoad
from headway.sim.workload import SloLimits
from headway.workload.agents import make_sessions
from headway.workload.session import Session, SessionTurn
from headway.workload.sessions import written
from planning.plan.candidate import Goal, Sizing
from planning.plan.confirm import confirm
from planning.plan.load import different_loads, faster, num_requests, rate_of, unit_of
from planning.plan.source import read_source
from planning.plan.trial import Trial

PROFILE = load_profile("llama-8b-h100")
NETWORK = NetworkParams()
LOAD = SessionLoad(make_sessions("agents", 1, 8, 0.5))


@pytest.fixture
def sessions_file(tmp_path: Path) -> str:
    path = tmp_path / "sessions.jsonl"
    path.write_text("\n".join(written(LOAD.sessions)))
    return str(path)


def sizing(count: int) -> Sizing:
    return Sizing("sbs", PROFILE, PROFILE, unified=count)


def test_sessions_run_on_the_cores() -> None:
    tried = Trial(LOAD, Goal(SloLimits(ttft=2.0)), NETWORK)
    found = tried.run(sizing(2))
    assert (tried.num_runs, tried.num_by_cores) == (1, 1)
    assert (found.is_whole, found.num_ended) == (True, LOAD.num_requests)
    assert found.attainment > 0.97


def test_turns_behind_one_that_nobody_can_hold_count_against_a_candidate() -> None:
    huge = SessionTurn(0.0, 500_000, 10)
    small = SessionTurn(0.0, 100, 10)
    sessions = [Session(0, "agent", 0.0, (small, huge, small)), Session(1, "agent", 1.0, (small,))]
    goal = Goal(SloLimits(ttft=2.0), 0.01)
    found = Trial(SessionLoad(sessions), goal, NETWORK).run(sizing(1))
    assert found.attainment == pytest.approx(0.5)
    confirmed = confirm(sizing(1), [SessionLoad(sessions)], goal, NETWORK)
    assert confirmed.attainment == pytest.approx(0.5)


def test_a_file_of_sessions_is_a_load(sessions_file: str) -> None:
    workload = read_source(sessions_file, "llama-8b-h100").workload
    (load,) = different_loads(workload, 3, 10_000)
    assert load == LOAD
    (few,) = different_loads(workload, 3, 60)
    assert isinstance(few, SessionLoad)
    assert 2 <= len(few.starts) < 8
    assert num_requests(few) <= 60
    with pytest.raises(HeadwayError, match="the number of sessions is 0; it must be at least 2"):
        different_loads(workload, 1, 1)


def test_a_load_that_grows_has_more_sessions_a_second() -> None:
    assert unit_of(LOAD) == "sessions/s"
    assert rate_of(faster(LOAD, 2.0)) == pytest.approx(2 * rate_of(LOAD))


def test_the_command_plans_for_sessions(
    sessions_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    arguments = ["--trace", sessions_file, "--slo", "ttft=2", "--profiles", "llama-8b-h100"]
    more = ["--presets", "sbs", "--topologies", "unified", "--max-gpus", "2", "--seeds", "1"]
    assert main(["plan", *arguments, *more, "--json", str(out)]) == 0
    assert "on the cores, as views have no sessions" in capsys.readouterr().out
    assert json.loads(out.read_text())["gpus"] == 1
