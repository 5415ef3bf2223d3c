"""``headway bench burst``: what it offers, what policies are told, and what its figures are."""

from __future__ import annotations

import argparse
import json
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.burst.plan import (
    CONTENDERS,
    UTILISATION,
    BurstLoad,
    filling,
    saturating_batch,
    scaling_params,
)
from bench.burst.run import BurstComparison, Workers, figures_of, ttft_by_second
from bench.serve.plan import Planned
from bench.serve.replay import ReplayedRequest
from cli.bench import burst
from headway.cost.profile import load_profile
from headway.metrics import RequestTimes
from headway.policies import registry
from results import plots

LOAD = BurstLoad(prompt_tokens=64, output_tokens=20)
PROFILE = load_profile("llama-8b-a100")


def outcome(arrival_at: float, ttft: float, *, error: str = "") -> ReplayedRequest:
    planned = Planned(0, arrival_at, b"", "", None)
    if error:
        return ReplayedRequest(planned, arrival_at, error_kind="cut off", error=error)
    times = RequestTimes(arrival_at, arrival_at + ttft, None, arrival_at + ttft + 1, 20, 0.2)
    return ReplayedRequest(
        planned, arrival_at, arrival_at + ttft + 1, times, array("d", [0.1, 0.2])
    )


WORKERS: Workers = [
    (0.0, {"prefill": 1, "decode": 1}),
    (10.5, {"prefill": 1, "decode": 1, "starting": 1}),
    (14.0, {"prefill": 1, "decode": 2}),
    (40.0, {"prefill": 1, "decode": 1, "draining": 1}),
    (41.0, {"prefill": 1, "decode": 1}),
]


def test_arrivals_are_few_then_many_then_few() -> None:
    instants = BurstLoad(64, 20, 2.0, 20.0, 50.0, 50.0, 50.0).instants(0)
    assert instants == sorted(instants)
    before, burst_, after = (
        sum(begin <= at < begin + 50 for at in instants) for begin in (0, 50, 100)
    )
    assert 60 <= before <= 140
    assert 850 <= burst_ <= 1150
    assert 60 <= after <= 140


def test_every_policy_is_offered_the_same() -> None:
    plan, again = LOAD.plan("m", 0), LOAD.plan("m", 0)
    assert plan == again
    body = json.loads(plan.requests[0].body)
    assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"]) == (64, 20, True)


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_takes_its_parameters(name: str) -> None:
    params = dict(scaling_params(name, PROFILE, LOAD, 0.25))
    if CONTENDERS[name] != "fixed":
        answer = registry.find("scaling", CONTENDERS[name])
        profile = {"profile": PROFILE} if answer.reads_profile else {}
        policy = registry.make("scaling", answer.name, **params, **profile)
        assert policy.name == CONTENDERS[name]
    assert params["target_utilisation"] == 0.7


def test_thresholds_are_what_the_profile_says_that_an_instance_carries() -> None:
    params = scaling_params("distserve", PROFILE, LOAD, 0.25)
    assert params["prefill_per_s"] == pytest.approx(PROFILE.prefill_velocity() / 64)
    assert params["decode_per_s"] == pytest.approx(PROFILE.decode_velocity(0) / 84)
    assert scaling_params("no-convertibles", PROFILE, LOAD, 0.25)["convertibles"] is False


@pytest.mark.parametrize("name", ["llama-8b-a100", "qwen-7b-h800"])
def test_what_fills_an_instance_is_a_little_more_than_it_is_planned_to_carry(name: str) -> None:
    profile = load_profile(name)
    load = filling(profile)
    num_prompt, num_output = load.prompt_tokens, load.output_tokens
    largest = profile.buckets.lengths(8)
    assert 1 <= num_prompt <= largest[0]
    assert 16 <= num_output <= largest[1]
    if num_prompt < largest[0]:
        assert load.burst_rate * num_prompt > UTILISATION * profile.prefill_velocity()
    if num_output < largest[1]:
        velocity = profile.decode_velocity(profile.buckets.of(num_prompt, num_output))
        assert load.burst_rate * (num_prompt + num_output) > UTILISATION * velocity


@given(rate=st.floats(0.01, 1e4))
def test_the_saturating_batch_is_one_that_a_decoder_can_have(rate: float) -> None:
    batch = saturating_batch(PROFILE, LOAD, rate)
    assert 1 <= batch <= PROFILE.max_batch


def test_the_saturating_batch_keeps_littles_law() -> None:
    batch = saturating_batch(PROFILE, LOAD, 20.0)
    stay = LOAD.output_tokens * PROFILE.pass_time.seconds(0, 0, batch, batch * 74)
    assert batch == pytest.approx(20.0 * stay) or batch == 1.0


def test_figures_tell_of_the_burst_of_workers_and_of_failures() -> None:
    requests = [outcome(5, 0.1), outcome(12, 0.2), outcome(13, 0.6), outcome(50, 0.1, error="x")]
    figures = figures_of(requests, WORKERS, LOAD)
    assert figures["burst_ttft_p50"] == pytest.approx(0.4, abs=0.21)
    assert figures["attainment"] == 50.0
    assert (figures["most_workers"], figures["ordered"], figures["gone"]) == (3, 1, 1)
    assert figures["ready_after"] == 4.0
    assert (figures["num_requests"], figures["num_failed"]) == (4, 1)
    rows = {figure.name for figure in BurstComparison.figures}
    assert rows - figures.keys() == {"resubmitted"}  # the gateway counts those


def test_figures_need_no_request_that_ended_and_no_worker_that_came() -> None:
    figures = figures_of([outcome(5, 0, error="x")], WORKERS[:1], LOAD)
    assert (figures["attainment"], figures["most_workers"]) == (0.0, 2)
    assert not figures.keys() & {"ttft_p99", "ready_after"}


def test_ttft_and_workers_are_drawn_over_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ttft = ttft_by_second([outcome(5, 0.1), outcome(12, 0.4)])
    assert dict(ttft) == {5.5: pytest.approx(0.1), 12.5: pytest.approx(0.4)}
    workers = [(at, sum(counts.values())) for at, counts in WORKERS]
    plots.burst(tmp_path, {"a": ttft}, {"a": workers}, (10.0, 30.0))
    assert (tmp_path / "burst.svg").stat().st_size > 1000
    assert (tmp_path / "burst.png").exists()


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    burst.add_options(parser)
    return parser.parse_args(["--profile", "llama-8b-a100", *flags])


def test_every_contender_has_a_cluster_that_may_start(tmp_path: Path) -> None:
    args = parsed("--log-dir", str(tmp_path))
    what = BurstComparison(args, list(CONTENDERS), PROFILE)
    assert what.systems == list(CONTENDERS)
    assert json.dumps(what.packed())
