"""When a split pays: the rule in seconds a request, on figures that are computed by hand.

The profile has round numbers: a pass takes 10 ms, 0.1 ms a prompt token, 0.1 ms a request that
decodes, and nothing for KV. A request has 1,000 prompt tokens (100 ms of passes) and 100 output
tokens (10 ms of passes).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from headway.cost.pass_time import PassTime
from headway.cost.profile import load_profile
from headway.cost.topology import Demand, Needs, chunk_within, is_kept_by, request_cost

ROUND = replace(
    load_profile("llama-8b-a100"),
    pass_time=PassTime(0.010, 1e-4, 1e-4),
    chunk_tokens=1000,
    max_batch=100,
    kv_capacity_tokens=1_000_000,
)
REQUEST = Demand.of(1.0, 1000, 100)


def at(rate: float) -> Demand:
    return replace(REQUEST, requests_per_s=rate)


def test_without_a_limit_a_chunk_and_a_batch_share_the_base_of_a_pass() -> None:
    cost = request_cost(REQUEST, ROUND)
    assert cost.prefill == pytest.approx(0.100 + 0.010)  # one chunk
    assert cost.decode == pytest.approx(0.010 + 0.010)  # 100 passes, each shared by 100
    assert cost.unified == pytest.approx(0.110 + 0.010)  # both in the same passes


def test_a_prefiller_pays_the_base_once_a_chunk_of_its_own() -> None:
    """Its prompts attend to themselves as before, however they are cut."""
    deep = replace(ROUND, pass_time=replace(ROUND.pass_time, per_prefill_context=1e-7))
    long = Demand.of(1.0, 4000, 100)
    usual, longer = (
        request_cost(long, replace(deep, prefill_chunk_tokens=chunk)) for chunk in (None, 2000)
    )
    assert usual.prefill - longer.prefill == pytest.approx(2 * 0.010)
    assert (usual.unified, usual.decode) == (longer.unified, longer.decode)


def test_under_a_limit_prompts_have_only_what_the_base_leaves_of_a_pass() -> None:
    cost = request_cost(REQUEST, ROUND, 0.020)  # half of every pass is its base
    assert cost.unified == pytest.approx(2 * 0.110)
    assert cost.prefill == pytest.approx(0.110)  # a prefiller has no limit between tokens
    assert cost.decode == pytest.approx(2 * 0.010)


def test_a_pass_of_the_batch_and_the_chunk_fits_exactly_while_unified_ones_are_enough() -> None:
    limit, full = 0.020, 1 / request_cost(REQUEST, ROUND, 0.020).unified
    for rate, fits in ((0.999 * full, True), (1.001 * full, False)):
        arrives_in_a_pass = rate * 1000 * limit
        assert (chunk_within(at(rate), ROUND, limit) >= arrives_in_a_pass) is fits
        assert (Needs.of(at(rate), ROUND, limit).unified <= 1) is fits


def test_nothing_keeps_a_limit_below_the_base_of_a_pass() -> None:
    cost = request_cost(REQUEST, ROUND, 0.009)
    assert (cost.unified, cost.decode) == (inf, inf)
    assert not is_kept_by(ROUND, 0.009)
    assert is_kept_by(ROUND, 0.011)
    assert chunk_within(at(1.0), ROUND, 0.009) == 0


def test_memory_bounds_the_batch_that_shares_a_pass() -> None:
    tight = replace(ROUND, kv_capacity_tokens=10 * 1050)  # ten requests
    assert request_cost(REQUEST, tight).decode == pytest.approx(0.010 + 0.100)


def test_units_of_an_instance_share_its_requests() -> None:
    one, two = (request_cost(REQUEST, replace(ROUND, num_units=n), 0.05) for n in (1, 2))
    assert two.unified == pytest.approx(one.unified / 2)
    assert two.prefill == pytest.approx(one.prefill / 2)
    assert two.decode == pytest.approx(one.decode / 2)


def test_attention_over_earlier_chunks_is_work_of_the_prompt() -> None:
    deep = replace(ROUND, pass_time=replace(ROUND.pass_time, per_prefill_context=1e-7))
    long = Demand.of(1.0, 3000, 100)
    context = 3000 * 2000 / 2 * 1e-7
    assert request_cost(long, deep).prefill == pytest.approx(0.300 + context + 0.030)


def test_a_split_needs_fewer_where_the_limit_is_a_small_multiple_of_the_base() -> None:
    needs = Needs.of(at(18.0), ROUND, 0.020)
    assert (needs.num_unified, needs.num_split) == (4, (2, 1))
    loose = Needs.of(at(18.0), ROUND, 0.200)
    assert (loose.num_unified, loose.num_split) == (3, (2, 1))


def test_nobody_needs_one_instance_of_each_all_the_same() -> None:
    needs = Needs.of(Demand.of(0.0, 0.0, 0.0), ROUND, 0.02)
    assert (needs.num_unified, needs.num_split) == (1, (1, 1))
