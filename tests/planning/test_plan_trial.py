"""Candidates of a plan: what counts against them, and what is said where none keeps the goal."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import main
from headway.cluster import Role
from headway.sim.clients import SimRequest
from headway.sim.network import NetworkParams
from headway.sim.workload import SloLimits
from planning.plan.candidate import DISAGGREGATED, Goal, Sizing
from planning.plan.confirm import Confirmed
from planning.plan.make import make_plan
from planning.plan.report import nothing_keeps
from planning.plan.search import search
from planning.plan.space import Profiles, make_space
from planning.plan.trial import Outcome, Trial
from tests.fakes.sim_clusters import instance

NETWORK = NetworkParams()
PROFILE = instance(Role.UNIFIED, kv_capacity_tokens=6000).profile
HEADER = "arrival_at,prompt_tokens,output_tokens"
SMALL = [SimRequest(f"r{n}", n / 10, 90, 9) for n in range(100)]
LONG = [SimRequest(f"r{n}", 0.05 * n, 300, 900 + n) for n in range(60)]


def trace(folder: Path, *rows: str) -> str:
    path = folder / "trace.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return str(path)


def test_a_request_that_no_instance_can_hold_counts_against_a_candidate() -> None:
    tried = Trial(
        [*SMALL, SimRequest("large", 10.0, 9000, 9)], Goal(SloLimits(ttft=1.0), 0.9), NETWORK
    )
    found = tried.run(Sizing("vllm-like", PROFILE, PROFILE, unified=2))
    assert found.missed == {"end": 1}
    assert found.attainment == pytest.approx(100 / 101)


@pytest.mark.parametrize("preset", ["uniboost", "headway"])
def test_a_candidate_whose_memory_is_short_runs_on_the_cores(preset: str) -> None:
    tried = Trial(LONG, Goal(SloLimits(ttlt=1000.0)), NETWORK)
    found = tried.run(Sizing(preset, PROFILE, PROFILE, prefill=1, decode=2))
    assert (tried.num_runs, tried.num_by_cores) == (1, 1)
    assert (found.is_whole, found.attainment) == (True, 1.0)
    hopeless = Trial(LONG, Goal(SloLimits(ttlt=0.1)), NETWORK)
    found = hopeless.run(Sizing(preset, PROFILE, PROFILE, prefill=1, decode=2))
    assert (found.is_whole, sum(found.missed.values())) == (False, 2)


def test_prompts_that_may_wait_ask_for_fewer_prefillers() -> None:
    crowd = [SimRequest(f"r{n}", n / 60, 4000, 9) for n in range(60)]
    profile = instance(Role.PREFILL, kv_capacity_tokens=200_000).profile
    space, _ = make_space(["vllm-like"], Profiles.same([profile]), [DISAGGREGATED], NETWORK)
    found = search(Trial(crowd, Goal(SloLimits(ttft=30.0)), NETWORK), space, 12)
    assert found[0].candidate.topology == "1P+1D"
    assert search(Trial(crowd, Goal(SloLimits(tpot=0.5)), NETWORK), space, 12)


# --- where nothing keeps the goal -----------------------------------------------------


def test_what_comes_nearest_is_said_with_what_it_misses() -> None:
    goal = Goal(SloLimits(ttft=1e-3))
    tried = Trial(SMALL, goal, NETWORK)
    space, _ = make_space(["vllm-like"], Profiles.same([PROFILE]), ["unified"], NETWORK)
    assert search(tried, space, 3) == []
    nearest = tried.closest()
    assert nearest is not None
    assert nearest.is_whole
    said = nothing_keeps(nearest, goal, 3)
    assert said.startswith("nothing within 3 GPUs keeps the goal, 97.0 %: 3U small vllm-like comes")
    assert "with 0.0 %, and most requests miss TTFT" in said
    assert said.endswith("give more --max-gpus, or another --slo")


def test_of_those_that_were_given_up_the_one_counts_that_came_furthest() -> None:
    asked = [*SMALL, *(SimRequest(f"l{n}", 10 + n / 10, 3000, 9) for n in range(40))]
    tried = Trial(asked, Goal(SloLimits(ttft=0.4), 0.95), NETWORK)
    few, more = (Sizing("vllm-like", PROFILE, PROFILE, unified=n) for n in (1, 2))
    first, second = tried.run(few), tried.run(more)
    assert first.attainment == second.attainment == 1 - 8 / 140  # both were given up
    assert first.num_ended < second.num_ended < 140
    nearest = tried.closest()
    assert nearest is not None
    assert nearest.candidate == more


def test_nothing_that_was_tried_is_said_as_that() -> None:
    assert Trial(SMALL, Goal(SloLimits()), NETWORK).closest() is None
    assert "prompts alone" in nothing_keeps(None, Goal(SloLimits()), 3)


def test_the_best_on_the_cores_is_named_where_none_keeps_the_goal() -> None:
    goal = Goal(SloLimits(ttft=1e-3))
    one = Sizing("vllm-like", PROFILE, PROFILE, unified=1)
    best = make_plan(Trial(SMALL, goal, NETWORK), [Outcome(one, 1.0)], [SMALL], 1)
    assert isinstance(best, Confirmed)
    said = nothing_keeps(best, goal, 1)
    assert "on the cores: 1U small vllm-like comes nearest, with 0.0 (≤ 3.7) %" in said


# --- what cannot be planned -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slo", "ttft=1,ttft=2"], "--slo ttft is '2'; it must be given once: it is 1 already"),
        (["--slo", "attainment=0.9"], "it must be a limit"),
        (["--slo", "ttft=nan"], "ttft is nan"),
        (["--profiles", "llama-70b-tp4-h100", "--max-gpus", "3"], "--max-gpus is 3; it must be at"),
        (["--out", "plan.sh"], "--out is 'plan.sh'; it must be given with --emit"),
        (["--trace", "chat-and-reasonin"], "or one of agents, agents-2p2d"),
        (["--rate", "1e-300"], "it must be at most 1e+08: give a higher rate"),
        (["--rate", "nan"], "--rate is nan"),
    ],
)
def test_odd_input_is_refused_in_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{n / 9},90,9" for n in range(60)]
    command = ["plan", "--trace", trace(tmp_path, *rows), "--profiles", "llama-8b-h100"]
    assert main([*command, "--slo", "ttft=1", *arguments]) == 2
    refused = capsys.readouterr().err
    assert said in refused
    assert refused.count("\n") == 1


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "has a header and no rows"),
        (["1,90,9"], "the number of requests is 1; it must be at least 2"),
        (["1,90,9", "nan,90,9"], "line 3: arrival_at is 'nan'; it must be seconds, 0 or more"),
        (["1,90,9", "2,nan,9"], "line 3: prompt_tokens is 'nan'; it must be a whole number"),
        (["1,90,9", "2,90,"], "the trace's arrival at 1 s has no output_tokens: add that column"),
        (["1,90,9", "1e30,90,9"], "the time of an arrival in seconds is 1e+30; it must be at most"),
    ],
)
def test_odd_traces_are_refused_in_one_sentence(
    rows: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "--trace", trace(tmp_path, *rows), "--profiles", "llama-8b-h100"]
    assert main([*command, "--slo", "ttft=1"]) == 2
    refused = capsys.readouterr().err
    assert said in refused
    assert refused.count("\n") == 1
