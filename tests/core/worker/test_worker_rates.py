"""KV goes to host memory where that is sooner than computing it again."""

from __future__ import annotations

import pytest

from headway.core.worker.rates import MemoryRates
from headway.forward_pass import ForwardPass, PassItem, PassResult, Swap
from headway.request import SamplingParams, StreamKey
from tests.fakes.worker_core import crowded, num_swapped

KEY = StreamKey("g", 1)
SAMPLINGS = (SamplingParams(), SamplingParams(num_prompt_logprobs=20))


def ran(rates: MemoryRates, num_tokens: int, pass_time: float) -> None:
    item = PassItem(KEY, (1,) * num_tokens, 0, (0,), True, SamplingParams(), (1,), ())
    rates.ran(ForwardPass(1, (item,)), PassResult(1, pass_time, ()))


def swapped(rates: MemoryRates, num_tokens: int, swap_time: float) -> None:
    swap = Swap(KEY, (0,), num_tokens, (0,))
    rates.ran(ForwardPass(1, (), swapped_out=(swap,)), PassResult(1, 9.0, (), swap_time=swap_time))


def test_prompts_whose_log_probabilities_are_asked_for_make_no_prefill_dearer() -> None:
    rates = MemoryRates()
    items = [PassItem(KEY, (1,) * 100, 0, (0,), True, each, (1,) * 100, ()) for each in SAMPLINGS]
    rates.ran(ForwardPass(1, tuple(items)), PassResult(1, 1.0, (), score_time=0.8))
    assert rates.prefill_per_token == pytest.approx(0.001)
    assert rates.score_per_token == pytest.approx(0.008)


def test_it_is_swapped_while_either_rate_is_unknown() -> None:
    rates = MemoryRates()
    assert rates.swap_is_sooner(100, 0)
    ran(rates, 100, 1e-6)
    assert rates.swap_is_sooner(100, 0)


def test_both_ways_of_a_swap_are_weighed_against_the_tokens_to_compute() -> None:
    rates = MemoryRates()
    ran(rates, 100, 1.0)
    swapped(rates, 100, 0.4)
    assert rates.swap_is_sooner(50, 0)
    assert rates.swap_is_sooner(50, 10)
    assert not rates.swap_is_sooner(50, 20)


def test_decoding_says_nothing_of_prefill() -> None:
    rates = MemoryRates()
    ran(rates, 1, 1.0)
    assert rates.prefill_per_token is None


def test_measurements_are_smoothed_by_their_tokens() -> None:
    rates = MemoryRates()
    ran(rates, 1000, 1.0)
    ran(rates, 10, 1.0)
    assert rates.prefill_per_token is not None
    assert 0.001 < rates.prefill_per_token < 0.003


def test_a_slow_swap_is_tried_again_some_day() -> None:
    rates = MemoryRates()
    ran(rates, 100, 1.0)
    swapped(rates, 100, 1.0)
    tries = 0
    while not rates.swap_is_sooner(100, 0):
        tries += 1
    assert 10 < tries < 100


def test_a_worker_whose_swaps_are_slow_computes_again() -> None:
    worker = crowded(100)
    rates = worker.core.units[0].rates
    ran(rates, 100, 0.001)
    swapped(rates, 100, 1.0)
    worker.run_all()
    assert num_swapped(worker) == (0, 0)
