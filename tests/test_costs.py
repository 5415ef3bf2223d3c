"""Costs of a pool: from profiles, from passes as they come, and from many instances."""

from __future__ import annotations

import random
from math import inf, nan

import pytest

from headway.cluster import Role
from headway.cost.costs import Costs, Source
from headway.cost.pass_time import GATES, PassTime, Share
from headway.cost.profile import load_profile
from headway.cost.running_fit import BLOCK, RunningFit
from tests.fakes.pass_times import TRUE

A100 = load_profile("llama-8b-a100")


def some_share(rng: random.Random) -> Share:
    """Return a part of a pass as a busy instance has it."""
    prefill = rng.choice([0, 0, 0, rng.randrange(1, 2000)])
    batch = rng.randrange(0 if prefill else 1, 64)
    return Share(prefill, prefill * rng.randrange(1000), batch, batch * rng.randrange(10, 3000))


def fed(fit: RunningFit, true: PassTime, num_passes: int, *, noise: float = 0.0) -> RunningFit:
    rng = random.Random(7)
    for _ in range(num_passes):
        shares = [some_share(rng)]
        fit.add(shares, true.lock_step(shares) * rng.lognormvariate(0.0, noise))
    return fit


@pytest.mark.parametrize("term", ["base", "per_prefill_token", "per_request", "per_kv_token"])
def test_passes_alone_tell_the_coefficients(term: str) -> None:
    found = fed(RunningFit(), TRUE, 20 * BLOCK).pass_time
    assert getattr(found, term) == pytest.approx(getattr(TRUE, term), rel=0.02)


@pytest.mark.parametrize("term", ["base", "per_prefill_token", "per_request", "per_kv_token"])
def test_noise_of_a_busy_machine_is_averaged(term: str) -> None:
    found = fed(RunningFit(), TRUE, 40 * BLOCK, noise=0.2).pass_time
    assert getattr(found, term) == pytest.approx(getattr(TRUE, term), rel=0.25)


def test_a_profile_that_is_right_stays_as_it_is() -> None:
    found = fed(RunningFit(TRUE), TRUE, 20 * BLOCK).pass_time
    for term in ("base", "per_prefill_token", "per_request", "per_kv_token"):
        assert getattr(found, term) == pytest.approx(getattr(TRUE, term), rel=1e-9)


def test_a_profile_that_is_wrong_gives_way() -> None:
    wrong = PassTime(0.05, 1e-3, 1e-2, 1e-5)
    found = fed(RunningFit(wrong), TRUE, 60 * BLOCK).pass_time
    assert found.per_request == pytest.approx(TRUE.per_request, rel=0.1)
    assert found.per_kv_token == pytest.approx(TRUE.per_kv_token, rel=0.1)


def test_terms_that_no_pass_has_stay_the_profiles() -> None:
    fit = RunningFit(TRUE)
    for batch in range(1, 2 * BLOCK + 1):
        fit.add([Share(0, 0, batch, batch * batch)], 1.0)
    assert fit.pass_time.per_prefill_token == TRUE.per_prefill_token
    assert not fit.knows_prefill
    assert fit.knows_decode


@pytest.mark.parametrize("gate", GATES)
def test_units_in_lock_step_count_as_their_gate_says(gate: str) -> None:
    true = PassTime(0.01, 1e-4, 1e-3, 1e-7, gate=gate)
    rng, fit = random.Random(3), RunningFit(true)
    for _ in range(10 * BLOCK):
        shares = [some_share(rng), some_share(rng)]
        fit.add(shares, true.lock_step(shares))
    assert fit.pass_time.per_kv_token == pytest.approx(1e-7, rel=1e-6)
    assert fit.pass_time.per_request == pytest.approx(1e-3, rel=1e-6)


def test_steps_of_one_pass_count_by_their_mean_kv() -> None:
    true, fit, rng = PassTime(0.01, 1e-4, 1e-3, 1e-6), RunningFit(), random.Random(1)
    for _ in range(20 * BLOCK):
        share, num_steps = some_share(rng)._replace(prefill_tokens=0, prefill_context=0), 11
        mean = true.seconds(0, 0, share.batch, share.kv_tokens + 5 * share.batch)
        fit.add([share], mean, num_steps)
    assert fit.pass_time.per_kv_token == pytest.approx(1e-6, rel=0.02)


@pytest.mark.parametrize("seconds", [0.0, -1.0, nan, inf, 1e9])
def test_a_pass_whose_time_is_none_does_not_count(seconds: float) -> None:
    fit = RunningFit(TRUE)
    assert not any(fit.add([Share(0, 0, 1, 10)], seconds) for _ in range(2 * BLOCK))
    assert fit.pass_time == TRUE


def test_a_fit_is_never_negative_and_never_fails() -> None:
    rng, fit = random.Random(5), RunningFit()
    for _ in range(50 * BLOCK):
        fit.add([some_share(rng)], rng.lognormvariate(0.0, 3.0))
        assert min(fit.pass_time.base, fit.pass_time.per_request, fit.pass_time.per_kv_token) >= 0


# --- costs of a pool ------------------------------------------------------------------


def test_a_profile_tells_every_cost() -> None:
    costs, passes = Costs.of([(Role.UNIFIED, A100)]), A100.pass_time
    assert (costs.per_request, costs.per_kv_token) == (passes.per_request, passes.per_kv_token)
    assert costs.first_pass == passes.seconds(A100.chunk_tokens / 2, 0, 0, 0)
    chunk = A100.chunk_tokens
    assert costs.prefill_per_token == pytest.approx(passes.seconds(chunk, 0, 0, 0) / chunk)
    assert costs.source_of("per_request") is Source.PROFILE


def test_prefillers_and_decoders_each_tell_what_they_do() -> None:
    other = load_profile("qwen-7b-h800")
    costs = Costs.of([(Role.PREFILL, A100), (Role.DECODE, other)])
    assert costs.per_request == other.pass_time.per_request
    assert costs.first_pass == A100.pass_time.seconds(A100.chunk_tokens / 2, 0, 0, 0)


def test_measured_costs_replace_the_profiles_and_say_so() -> None:
    profiled = Costs(first_pass=0.2, per_request=1e-4, per_kv_token=1e-8)
    found = profiled.updated([Costs(per_request=3e-4)])
    assert (found.per_request, found.per_kv_token) == (3e-4, 0.0)
    assert found.source_of("per_kv_token") is Source.MEASURED
    assert found.first_pass == 0.2
    assert found.source_of("first_pass") is Source.PROFILE


def test_one_of_three_instances_cannot_set_the_pools_costs() -> None:
    honest = [Costs(per_request=1e-4, per_kv_token=1e-8), Costs(per_request=2e-4)]
    found = Costs().updated([*honest, Costs(per_request=3600.0, per_kv_token=3600.0)])
    assert found.per_request == 2e-4
    assert found.per_kv_token == 1e-8
