"""TokenScale, section IV-E: prefillers that meet the SLO, convertibles second, else the queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Constant, Costs, Source
from headway.errors import HeadwayError
from headway.policies.dispatch import InstanceLoad, Turn
from headway.policies.dispatch.tokenscale import (
    AVAILABLE,
    CONVERTIBLE,
    PREFILLER,
    TokenScaleRouting,
    TokenScaleRoutingParams,
)
from tests.fakes.candidates import Prompt
from tests.fakes.policies import A100
from tests.fakes.scheduler_text import SchedulerHarness, make_info
from tests.fakes.tokenscale import PARAMS


def prefiller(worker_id: str, in_flight: int = 0, **fields: object) -> InstanceLoad:
    load = InstanceLoad(worker_id, in_flight, in_flight, 1, 1, in_flight < 2048, True)
    return replace(load, **fields)  # type: ignore[arg-type]  # fields by name


def convertible(
    worker_id: str, in_flight: int = 0, batch: int = 0, **fields: object
) -> InstanceLoad:
    """A convertible decoder of chunk 1000."""
    fields = {"chunk_tokens": 1000, **fields}
    return prefiller(worker_id, in_flight, role=Role.CONVERTIBLE, num_decoding=batch, **fields)


def turns(
    loads: list[InstanceLoad],
    *prompts: Prompt,
    now: float = 0.0,
    params: TokenScaleRoutingParams = PARAMS,
) -> list[Turn]:
    return TokenScaleRouting(params).turns(loads, len(prompts), now=now, waiting=prompts)


def routed(
    loads: list[InstanceLoad], *prompts: Prompt, **options: object
) -> dict[int, tuple[str, str]]:
    """Where each prompt goes, by which rule; who waits is not there."""
    return {
        key.stream_id: (turn.worker_id, turn.rule)
        for turn in turns(loads, *prompts, **options)  # type: ignore[arg-type]  # options by name
        for key in turn.keys or ()
    }


# --- the SLO by prompt length -------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "slo"),
    [(1, 0.25), (256, 0.25), (257, 0.4), (1024, 0.4), (1025, 2.0), (8192, 2.0), (100_000, 2.0)],
)
def test_the_ttft_slo_goes_by_prompt_length(num_tokens: int, slo: float) -> None:
    assert TokenScaleRouting(PARAMS).ttft_slo(num_tokens) == slo


# --- first round --------------------------------------------------------------------------


def test_the_first_prefiller_that_meets_the_slo_takes_it() -> None:
    loads = [prefiller("c"), prefiller("b", 2300), prefiller("a", 2301)]
    assert routed(loads, Prompt(1, 200)) == {1: ("b", PREFILLER)}


def test_a_prompts_own_time_counts() -> None:
    loads = [prefiller("a", 3000)]
    assert routed(loads, Prompt(1, 1000)) == {1: ("a", PREFILLER)}
    assert routed(loads, Prompt(1, 1001)) == {}


def test_the_time_it_has_waited_counts() -> None:
    assert routed([prefiller("a", 3000)], Prompt(1, 1000, arrival_at=5.0), now=5.01) == {}


def test_a_margin_of_the_slo_may_be_kept_for_what_a_velocity_leaves_out() -> None:
    params = replace(PARAMS, margin=0.2)
    assert routed([prefiller("a", 2200)], Prompt(1, 1000), params=params) == {1: ("a", PREFILLER)}
    assert routed([prefiller("a", 2201)], Prompt(1, 1000), params=params) == {}


def test_prompts_given_out_together_count_for_each_other() -> None:
    loads = [prefiller("a", 2000), prefiller("b", 2000)]
    found = routed(loads, *(Prompt(n, 200) for n in range(6)))
    assert [found[n][0] for n in (0, 1, 2, 3)] == ["a", "a", "b", "b"]
    assert 4 not in found
    assert 5 not in found


def test_the_feasible_one_with_the_least_work_takes_it_unless_the_first_is_asked_for() -> None:
    loads = [prefiller("a", 1000), prefiller("b", 500)]
    assert TokenScaleRoutingParams().fit == "least"
    assert routed(loads, Prompt(1, 200), params=replace(PARAMS, fit="least"))[1][0] == "b"
    assert routed(loads, Prompt(1, 200), params=replace(PARAMS, fit="first"))[1][0] == "a"


def test_feasibility_routing_fills_up_to_the_slo() -> None:
    found = routed([prefiller("a"), prefiller("b")], *(Prompt(n, 250) for n in range(10)))
    assert [found[n][0] for n in range(10)] == ["a"] * 10


def test_an_instance_without_kv_memory_for_the_prompt_is_passed() -> None:
    loads = [prefiller("a", free_tokens=199), prefiller("b", has_room=False), prefiller("c")]
    assert routed(loads, Prompt(1, 200)) == {1: ("c", PREFILLER)}


# --- second round -------------------------------------------------------------------------


def test_a_convertible_takes_what_no_prefiller_can_serve_in_time() -> None:
    loads = [convertible("k"), prefiller("p", 4000)]
    assert routed(loads, Prompt(1, 200)) == {1: ("k", CONVERTIBLE)}


def test_a_convertible_is_left_alone_while_a_prefiller_can() -> None:
    assert routed([convertible("a"), prefiller("p")], Prompt(1, 200)) == {1: ("p", PREFILLER)}


def test_a_convertible_is_judged_by_what_its_decode_batch_leaves_of_the_chunk() -> None:
    busy = prefiller("p", 30_000)
    assert routed([convertible("k", 1000, batch=500), busy], Prompt(1, 250)) == {
        1: ("k", CONVERTIBLE)
    }
    assert routed([convertible("k", 1001, batch=500), busy], Prompt(1, 250)) == {}
    assert routed([convertible("k", batch=1000), busy], Prompt(1, 1)) == {}


def test_a_burst_request_goes_to_a_convertible_first() -> None:
    loads = [prefiller("a"), convertible("k")]
    found = routed(loads, Prompt(1, 200, is_burst=True), Prompt(2, 200))
    assert found == {1: ("k", CONVERTIBLE), 2: ("a", PREFILLER)}


def test_a_burst_request_goes_to_a_prefiller_if_no_convertible_can() -> None:
    loads = [prefiller("a"), convertible("k", batch=1000)]
    assert routed(loads, Prompt(1, 200, is_burst=True)) == {1: ("a", PREFILLER)}


def test_the_chunk_is_the_convertibles_own() -> None:
    """(512 − 12) / 0.1 s × 0.25 s are 1250 tokens."""
    busy = prefiller("p", 30_000)
    for in_flight, found in ((1000, {1: ("k", CONVERTIBLE)}), (1001, {})):
        loads = [convertible("k", in_flight, batch=12, chunk_tokens=512), busy]
        assert routed(loads, Prompt(1, 250)) == found


# --- where the velocities are from --------------------------------------------------------

MEASURED = Costs(prefill_tokens_per_s=2000.0, measured=("prefill_tokens_per_s",))


def test_v_p_is_assumed_until_the_pool_has_a_profile_or_has_measured_it() -> None:
    policy = TokenScaleRouting(PARAMS)
    assert policy.constants() == (Constant("V_P", 10_000.0, Source.DEFAULT),)
    for costs, found in (
        (Costs.of([(Role.UNIFIED, A100)]), Constant("V_P", 14_000.0, Source.PROFILE)),
        (MEASURED, Constant("V_P", 2000.0, Source.MEASURED)),
    ):
        policy.learn(costs)
        assert policy.constants() == (found,)


def test_a_given_v_p_stands() -> None:
    policy = TokenScaleRouting(replace(PARAMS, prefill_tokens_per_s=3000.0))
    policy.learn(MEASURED)
    assert policy.constants() == (Constant("V_P", 3000.0, Source.GIVEN),)


def test_a_network_that_is_slower_limits_v_p() -> None:
    policy = TokenScaleRouting(PARAMS)
    policy.learn(replace(MEASURED, network_tokens_per_s=500.0))
    assert policy.constants()[0].value == 500.0


def test_prompts_are_routed_by_the_measured_v_p() -> None:
    policy, prompt = TokenScaleRouting(PARAMS), Prompt(1, 250)
    for costs, rule in ((Costs(), PREFILLER), (MEASURED, CONVERTIBLE)):
        policy.learn(costs)
        loads = [prefiller("p", 500), convertible("k")]
        assert [turn.rule for turn in policy.turns(loads, 1, now=0.0, waiting=[prompt])] == [rule]


def test_v_conv_of_the_slowest_convertible_is_a_constant_of_the_decision() -> None:
    policy = TokenScaleRouting(PARAMS)
    loads = [prefiller("p"), convertible("j", batch=100), convertible("k", batch=300)]
    policy.turns(loads, 1, now=0.0, waiting=[Prompt(1, 200)])
    assert policy.constants()[1] == Constant("V_conv", 7000.0, Source.MEASURED)
    policy.turns(loads[:1], 1, now=0.0, waiting=[Prompt(1, 200)])
    assert len(policy.constants()) == 1


# --- the queue ----------------------------------------------------------------------------


def test_who_finds_no_feasible_instance_waits() -> None:
    assert turns([prefiller("a", 20_000), convertible("k", 20_000)], Prompt(1, 200)) == []


def test_the_queue_is_looked_at_again_when_capacity_changes() -> None:
    policy, prompt = TokenScaleRouting(PARAMS), Prompt(1, 200)
    busy = prefiller("a", 20_000)
    assert policy.turns([busy], 1, now=0.0, waiting=[prompt]) == []
    new = policy.turns([busy, prefiller("b")], 1, now=0.05, waiting=[prompt])
    assert [(t.worker_id, t.rule) for t in new] == [("b", PREFILLER)]


def test_who_is_too_late_takes_a_prefiller_with_capacity_to_spare() -> None:
    late = Prompt(1, 200, arrival_at=0.0)
    assert routed([prefiller("a", 1000), prefiller("b", 500)], late, now=9.0) == {
        1: ("b", AVAILABLE)
    }
    assert routed([prefiller("a", 3000)], late, now=9.0) == {}


def test_those_that_still_can_meet_their_slo_come_before_those_that_cannot() -> None:
    found = routed([prefiller("a")], Prompt(1, 200), Prompt(2, 200, arrival_at=9.0), now=9.0)
    assert found == {2: ("a", PREFILLER)}


def test_the_queue_is_served_oldest_first_one_an_instance_and_turn() -> None:
    late = [Prompt(n, 200) for n in range(3)]
    found = routed([prefiller("a"), prefiller("b")], *late, now=9.0)
    assert found == {0: ("a", AVAILABLE), 1: ("b", AVAILABLE)}


def test_a_prompt_that_is_longer_than_any_slo_is_served_all_the_same() -> None:
    assert routed([prefiller("a")], Prompt(1, 100_000)) == {1: ("a", AVAILABLE)}


def test_convertibles_serve_the_queue_only_where_there_is_no_prefiller() -> None:
    late = Prompt(1, 200)
    assert routed([convertible("k")], late, now=9.0) == {1: ("k", AVAILABLE)}
    assert routed([convertible("k"), prefiller("p", 9000)], late, now=9.0) == {}


# --- in the scheduler ---------------------------------------------------------------------


def scheduler(profile_chunk: int = 2048) -> SchedulerHarness:
    settings = SchedulerSettings(
        dispatch="tokenscale",
        dispatch_params={"profile": A100, "margin": 0.0},
        packing="round-robin",
    )
    harness = SchedulerHarness(settings)
    harness.now = 100.0
    harness.connect(make_info("p", chunk=profile_chunk, blocks=4000))
    harness.connect(make_info("k", Role.CONVERTIBLE, chunk=994, blocks=4000))
    return harness


def submit(harness: SchedulerHarness, stream_id: int, num_prompt: int, **fields: object) -> None:
    harness.submit(stream_id, num_prompt, arrival_at=harness.now, **fields)


def test_the_scheduler_dispatches_to_the_prefiller_until_its_slo_is_full() -> None:
    harness = scheduler()
    for stream_id in range(1, 21):
        submit(harness, stream_id, 250)
    # 14,000 tokens/s × 0.25 s = 14 prompts; then 9,940 × 0.25 s = 9 on the convertible
    assert harness.dispatched("p") == list(range(1, 15))
    assert harness.dispatched("k") == list(range(15, 21))


def test_who_waits_in_the_scheduler_goes_when_a_pass_has_ended() -> None:
    harness = scheduler()
    for stream_id in range(1, 26):
        submit(harness, stream_id, 250)
    placed = len(harness.dispatched("p")) + len(harness.dispatched("k"))
    assert placed == 23
    harness.accept("p")
    harness.end_forward("p", dispatch_ids=tuple(d.dispatch_id for d in harness.dispatches("p")))
    for dispatch in harness.dispatches("p")[:-1]:
        harness.accept("p", dispatch.dispatch_id)
    harness.end_forward("p", dispatch_ids=(), after=0.01)
    assert sorted(harness.dispatched("p") + harness.dispatched("k")) == list(range(1, 26))


def test_the_decision_says_which_round_chose() -> None:
    harness = scheduler()
    for stream_id in range(1, 16):
        submit(harness, stream_id, 250)
    rules = [d.rule for d in harness.decisions() if d.question == "dispatch"]
    assert rules == [PREFILLER] * 14 + [CONVERTIBLE]


def test_a_new_prefiller_is_used_as_soon_as_it_is_there() -> None:
    harness = scheduler()
    for stream_id in range(1, 30):
        submit(harness, stream_id, 250)
    harness.connect(make_info("q", blocks=4000))
    assert harness.dispatched("q") == list(range(24, 30))


@pytest.mark.parametrize(
    ("name", "value"),
    [("ttft_short", 0.0), ("tpot_slo", -1.0), ("margin", 1.0), ("fit", "best"), ("window", 0)],
)
def test_a_parameter_out_of_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(HeadwayError, match=name):
        TokenScaleRoutingParams(**{name: value})  # type: ignore[arg-type]  # one field by name
