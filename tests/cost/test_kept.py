"""Shares that each topology keeps in time, and which of them pays, without a simulation.

Requests are those of the study with Llama-8B on A100s. What four instances of either kind keep
there was simulated on seeds 1 to 3.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cost.kept import KeptShares, Pledge, kept_by, pays_split
from headway.cost.profile import load_profile
from headway.cost.topology import Demand, Needs

A100 = load_profile("llama-8b-a100")


def at(rate: float, prompt: int, output: int) -> Demand:
    return Demand.of(rate, prompt, output)


def kept(demand: Demand, goal: Pledge, number: int = 4) -> KeptShares:
    return kept_by(demand, A100, goal, number)


def pays(demand: Demand, goal: Pledge, *, is_split: bool = False, most: int = 4) -> bool:
    return pays_split(demand, A100, goal, most, planned=0.85, gain=0.1, is_split=is_split)


@pytest.mark.parametrize(
    ("rate", "prompt", "output", "goal", "unified", "split"),
    [
        (45.2, 512, 32, Pledge(0.025, 0.4), 0.88, 1.00),
        (72.3, 512, 32, Pledge(0.025, 0.4), 0.04, 0.88),
        (31.8, 512, 128, Pledge(0.05, 0.4), 1.00, 1.00),
        (4.5, 8192, 32, Pledge(0.05, 2.0), 0.41, 0.36),
        (2.4, 8192, 128, Pledge(0.025, 2.0), 0.40, 0.99),
        (3.8, 8192, 128, Pledge(0.025, 2.0), 0.04, 0.55),
        (3.8, 8192, 128, Pledge(0.05, 2.0), 0.44, 0.78),
    ],
)
def test_shares_are_those_of_the_simulator(
    rate: float, prompt: int, output: int, goal: Pledge, unified: float, split: float
) -> None:
    found = kept(at(rate, prompt, output), goal)
    assert found.unified == pytest.approx(unified, abs=0.2)
    assert found.split == pytest.approx(split, abs=0.2)


def test_where_nothing_is_kept_the_less_overfull_topology_is_left_to_serve() -> None:
    demand, goal = at(400.0, 2048, 32), Pledge(0.025, 0.4)
    shares, needs = kept(demand, goal), Needs.of(demand, A100, 0.025)
    assert max(shares.unified, shares.split) < 0.01
    assert needs.unified / 4 > max(needs.prefill / 3, needs.decode)
    assert pays(demand, goal)
    assert pays(demand, goal, is_split=True)
    short = replace(demand, prompt_tokens=1.0, kv_tokens=17.0, requests_per_s=20_000.0)
    needs = Needs.of(short, A100, 0.1)
    assert needs.unified / 4 < max(needs.prefill, needs.decode / 3)
    assert not pays(short, Pledge(0.1, 0.4))
    assert not pays(short, Pledge(0.1, 0.4), is_split=True)


def test_a_queue_of_equal_prompts_is_as_long_as_the_formula_says() -> None:
    """One prefiller, 95 % full, no decoding to speak of: Lindley's recursion over a minute."""
    demand = at(1.0, 2048, 1)
    seconds = Needs.of(demand, A100).prefill
    rate = 0.95 / seconds
    rng, shares = Random(1), []
    for _ in range(200):
        now = queue = 0.0
        while now < 60.0:
            gap = rng.expovariate(rate)
            now, queue = now + gap, max(0.0, queue - gap)
            shares.append(queue + seconds <= 1.0)
            queue += seconds
    found = kept(replace(demand, requests_per_s=rate), Pledge(inf, 1.0, 60.0), 2)
    assert found.split == pytest.approx(fmean(shares), abs=0.05)


def test_nothing_is_kept_where_a_prompt_alone_takes_longer_than_its_promise() -> None:
    found = kept(at(0.1, 8192, 32), Pledge(0.1, 0.5))
    assert (found.unified, found.split) == (0.0, 0.0)


def test_of_splits_that_keep_as_much_the_one_that_is_filled_least_is_best() -> None:
    found = kept(at(9.6, 2048, 128), Pledge(0.025, 2.0))
    assert (found.num_prefill, found.num_decode) == (3, 1)


def test_batches_decide_where_decoders_are_full_and_prefillers_are_not() -> None:
    found = kept(at(15.4, 2048, 128), Pledge(0.025, 2.0))
    assert (found.num_prefill, found.num_decode) == (2, 2)  # one decoder is 118 % full


@given(
    rate=st.floats(0.01, 200),
    prompt=st.integers(1, 16_000),
    output=st.integers(1, 2000),
    limit=st.floats(0.005, 0.5) | st.just(inf),
)
def test_shares_are_shares_and_fall_with_the_load(
    rate: float, prompt: int, output: int, limit: float
) -> None:
    goal = Pledge(limit, 2.0)
    found = [kept(at(rate * more, prompt, output), goal) for more in (1.0, 1.2, 2.0)]
    for each in found:
        assert 0.0 <= each.unified <= 1.0
        assert 0.0 <= each.split <= 1.0
        assert each.num_prefill + each.num_decode == 4
    for less, more in pairwise(found):
        assert more.unified <= less.unified + 1e-3
        assert more.split <= less.split + 0.011  # of those within a point any may be named


def test_where_either_is_enough_the_fewer_are_chosen() -> None:
    assert not pays(at(20.0, 512, 32), Pledge(0.1, 0.4))
    assert pays(at(45.2, 512, 32), Pledge(0.025, 0.4))


def test_where_neither_is_enough_what_is_kept_is_compared() -> None:
    long = at(4.5, 8192, 32)
    assert not pays(long, Pledge(0.05, 2.0))  # 32 and 38 %
    assert pays(long, Pledge(0.025, 2.0))  # 0 and 38 %


def test_a_topology_stays_unless_the_other_gains_enough() -> None:
    long, goal = at(4.5, 8192, 32), Pledge(0.05, 2.0)
    assert pays(long, goal, is_split=True)
    assert not pays(long, goal)
