"""MemGuard: priorities at doubling levels, one voluntary preemption a level, room for growth."""

from __future__ import annotations

from dataclasses import replace
from math import floor, inf, log2

import pytest

from headway.errors import HeadwayError
from headway.policies.batching.boost import BoostParams, boost
from headway.policies.batching.uniboost_base import UniBoostBase
from headway.policies.batching.uniboost_memguard import (
    MemGuardParams,
    UniBoostMemGuard,
    level_of,
    next_level_at,
    quantised,
)
from tests.fakes.candidates import Queued, decoding
from tests.fakes.plans import Planned, make_planned, names


def guard(gamma: float = 0.05, k: int = 64, seconds_per_token: float = 1e-3) -> UniBoostMemGuard:
    return UniBoostMemGuard(MemGuardParams(gamma, seconds_per_token, k=k))


# --- levels -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 16, 64, 96])
def test_work_is_quantised_to_k_times_a_power_of_two(k: int) -> None:
    for tokens in range(1, 40 * k):
        printed = k * 2 ** floor(log2(tokens / k)) if tokens >= k else 0
        assert quantised(tokens, k) == printed


def test_quantising_by_bit_length_is_exact_where_logarithms_are_not() -> None:
    for power in range(60):
        assert quantised(64 << power, 64) == 64 << power
        assert quantised((64 << power) - 1, 64) == (32 << power if power else 0)


def test_a_level_lasts_until_the_tokens_have_doubled() -> None:
    assert [level_of(n, 64) for n in (0, 63, 64, 127, 128, 255, 256)] == [0, 0, 1, 1, 2, 2, 3]
    assert [next_level_at(n, 64) for n in (0, 63, 64, 127, 128)] == [64, 64, 128, 128, 256]


def test_a_rank_moves_at_levels_only_and_says_when() -> None:
    policy = guard()
    ranked = policy.rank(decoding(1, 130, prompt=100), now=0.0)
    assert all(
        policy.rank(decoding(1, tokens, prompt=100), now=9.0).rank == ranked.rank
        for tokens in range(128, 256)
    )
    assert policy.rank(decoding(1, 256, prompt=100), now=0.0).rank > ranked.rank
    assert ranked.until_tokens == 229 + 126  # attained, and so many to 256 generated


def test_generated_tokens_come_quantised_on_top_of_the_prompt() -> None:
    policy = guard()
    phi = policy.rank(decoding(1, 130, 5.0, prompt=100), now=0.0).rank[0]
    assert phi == 5.0 - boost(0.228, 0.05)
    cached = replace(decoding(1, 130, 5.0, prompt=100), num_cached_tokens=100)
    assert policy.rank(cached, now=0.0).rank[0] == 5.0 - boost(0.128, 0.05)


def test_in_a_decode_pool_below_the_first_level_work_is_one_token() -> None:
    handed = replace(decoding(1, 30, 5.0, prompt=100), num_cached_tokens=100)
    assert guard().rank(handed, now=0.0).rank[0] == 5.0 - boost(1e-3, 0.05)


# --- credit -----------------------------------------------------------------------------

OLD, NEW = decoding(1, 70, 0.0, prompt=100), Queued(2, 1.0, num_prompt_tokens=10)


def test_a_request_has_one_voluntary_preemption_to_give_at_each_level() -> None:
    policy = guard()
    assert policy.may_preempt(OLD, NEW, now=1.0)
    policy.preempted(OLD, voluntary=True)
    assert not policy.may_preempt(OLD, NEW, now=1.0)
    assert not policy.may_preempt(replace(OLD, num_output_tokens=127), NEW, now=1.0)
    assert policy.may_preempt(replace(OLD, num_output_tokens=128), NEW, now=1.0)


def test_credits_are_each_request_s_own() -> None:
    policy = guard()
    policy.preempted(OLD, voluntary=True)
    assert policy.may_preempt(replace(OLD, name=3), NEW, now=1.0)


def test_a_preemption_by_need_asks_for_no_credit_and_spends_none() -> None:
    policy = guard()
    policy.preempted(OLD, voluntary=False)
    assert policy.may_preempt(OLD, NEW, now=1.0)


def test_credits_end_with_the_request() -> None:
    policy = guard()
    policy.preempted(OLD, voluntary=True)
    policy.forget(OLD.key)
    assert policy.may_preempt(OLD, NEW, now=1.0)


def newcomers(policy: UniBoostMemGuard | UniBoostBase, length: int) -> int:
    """Voluntary preemptions of a request under a stream of small ones that do not fit beside it."""
    planned = make_planned(policy, blocks=11 * length // 4, chunk=4096)
    large = planned.come(0, 10 * length, length, arrival_at=0.0)
    for name in range(1, 100 * length):
        planned.step(2)
        if large in planned.ended:
            return large.num_voluntary
        planned.come(name, length + 4, 1)
    raise AssertionError("the large one never ends")


@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("length", [16, 100, 256])
def test_voluntary_preemptions_are_bounded_by_the_levels(k: int, length: int) -> None:
    bound = floor(log2(length / k)) + 2
    assert 0 < newcomers(guard(1e-4, k=k), length) <= bound
    assert 0 < newcomers(guard(0.0, k=k), length) <= bound


def test_the_bound_is_reached_where_every_level_meets_a_better_one() -> None:
    assert newcomers(guard(0.0, k=4), 64) == floor(log2(63 / 4)) + 2  # the 64th token ends it


def test_without_levels_every_newcomer_preempts_again() -> None:
    assert newcomers(UniBoostBase(BoostParams(1e-4, 1e-3)), 100) > 90


def test_preemptions_by_need_are_counted_apart() -> None:
    planned = make_planned(guard(inf), blocks=6)
    planned.come(1, 8, 12, arrival_at=0.0)
    planned.come(2, 8, 12, arrival_at=0.0)
    planned.finish()
    preemptions = planned.planner.preemptions
    assert (preemptions.num_voluntary, preemptions.num_forced > 0) == (0, True)
    assert sum(preemptions.by_request.values()) == 2


# --- gain -------------------------------------------------------------------------------


def test_a_preemption_must_gain_more_than_the_swap_costs() -> None:
    policy = UniBoostMemGuard(MemGuardParams(0.05, 1e-3, swap_per_token=1e-5))
    gain = policy.phi(OLD)[0] - policy.phi(NEW)[0]
    cheap = replace(OLD, num_kv_tokens=int(gain / 1e-5) - 1)
    assert policy.may_preempt(cheap, NEW, now=0.0)
    assert not policy.may_preempt(replace(cheap, num_kv_tokens=int(gain / 1e-5) + 1), NEW, now=0.0)


def test_without_a_swap_path_the_kv_costs_what_computing_it_again_does() -> None:
    policy = guard(seconds_per_token=2e-3)
    assert policy.swap_cost(replace(OLD, num_kv_tokens=500)) == 1.0


def test_at_gamma_zero_any_gain_will_do() -> None:
    policy = guard(0.0)
    assert policy.may_preempt(replace(OLD, num_kv_tokens=10**9), NEW, now=0.0)


# --- admission --------------------------------------------------------------------------


def crowded(watermark: float) -> Planned:
    """One that decodes in 6 of 10 blocks and may not be preempted."""
    planned = make_planned(UniBoostMemGuard(MemGuardParams(inf, 1e-3)), watermark=watermark)
    planned.come(1, 20, 4, arrival_at=0.0)
    planned.step()
    return planned


def test_admission_keeps_a_watermark() -> None:
    for watermark, served in ((0.0, [1, 2]), (0.1, [1])):
        planned = crowded(watermark)
        planned.come(2, 16, 3, arrival_at=1.0)
        assert names(planned.step()) == served


def test_one_that_does_not_fit_blocks_later_ones_of_lower_priority_never_running_ones() -> None:
    planned = crowded(0.1)
    planned.come(2, 30, 3, arrival_at=1.0)
    planned.come(3, 4, 3, arrival_at=2.0)
    assert names(planned.step()) == [1]
    planned.come(4, 4, 3, arrival_at=0.5)  # of higher priority: it enters
    assert names(planned.step()) == [1, 4]


@pytest.mark.parametrize("field", [{"k": 0}, {"k": 2**20 + 1}, {"swap_per_token": 1.5}])
def test_parameters_out_of_range_are_refused_by_name(field: dict[str, float]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(field))):
        MemGuardParams(**field)  # type: ignore[arg-type]
