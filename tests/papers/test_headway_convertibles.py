"""The composition, stage 2: convertible decoders take what prefillers cannot, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role, UnitId, UnitLoad
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import policy_settings
from headway.cost.costs import Constant, Costs, Source
from headway.cost.velocity import LimitsInForce, TokenLimits
from headway.policies import registry
from headway.policies.dispatch import InstanceLoad, Turn
from headway.policies.dispatch.sbs import CONVERTIBLE, SbsParams, StaggeredBatch
from headway.policies.placement import DecodeUnit
from headway.presets import find_preset
from headway.request import StreamKey
from headway.service_class import ServiceClass, Standing
from tests.fakes.candidates import Prompt
from tests.fakes.policies import A100
from tests.fakes.scheduler_text import SchedulerHarness, make_info, make_request

PASS = 0.05
KEY = StreamKey("g", 1)
SLOS = SbsParams(default_pass_time=PASS, prefill_tokens_per_s=10_000, margin=0.0)


def staggered(params: SbsParams = SLOS, *prefillers: str) -> StaggeredBatch:
    policy = StaggeredBatch(params)
    for worker_id in prefillers or ("p",):
        policy.join(worker_id)
    policy.join("k", Role.CONVERTIBLE)
    return policy


def prefiller(worker_id: str = "p", queued: int = 0, depth: int = 0) -> InstanceLoad:
    return InstanceLoad(worker_id, depth or queued, queued, 1, 1, queued < 2048, True)


def convertible(**fields: object) -> InstanceLoad:
    load = InstanceLoad("k", 0, 0, 1, 0, True, True, role=Role.CONVERTIBLE)
    return replace(load, **fields)  # type: ignore[arg-type]  # fields by name


def turns(policy: StaggeredBatch, *loads: InstanceLoad, prompts: list[Prompt]) -> list[Turn]:
    return policy.turns(loads, len(prompts), now=1.0, waiting=prompts)


def to_convertible(policy: StaggeredBatch, *loads: InstanceLoad, prompts: list[Prompt]) -> set[int]:
    """Requests that the convertible may be given now."""
    found = turns(policy, *loads, prompts=prompts)
    return {key.stream_id for t in found if t.rule == CONVERTIBLE for key in t.keys or ()}


def test_without_a_burst_a_convertible_has_no_turn() -> None:
    prompts = [Prompt(n, 200, arrival_at=1.0) for n in range(4)]
    found = turns(staggered(), prefiller(), convertible(), prompts=prompts)
    assert {turn.worker_id for turn in found} == {"p"}


def test_burst_requests_alone_are_offered_to_a_convertible() -> None:
    prompts = [Prompt(n, 200, arrival_at=1.0, is_burst=n == 2) for n in range(4)]
    found = turns(staggered(), prefiller(queued=9, depth=9), convertible(), prompts=prompts)
    assert [turn.worker_id for turn in found] == ["k", "p"]
    assert found[0].rule == CONVERTIBLE
    assert found[0].keys == [prompts[2].key]
    assert found[1].keys is None


def test_a_prefiller_that_idles_comes_before_a_convertible() -> None:
    prompts = [Prompt(n, 200, arrival_at=1.0, is_burst=True) for n in range(4)]
    loads = [prefiller("p", 9), prefiller("q"), convertible()]
    found = turns(staggered(SLOS, "p", "q"), *loads, prompts=prompts)
    assert [turn.worker_id for turn in found] == ["q", "k", "p"]


@pytest.mark.parametrize(("queued", "taken"), [(2300, set()), (2301, {1})])
def test_a_prompt_too_late_for_its_slo_behind_the_queue_may_use_it(
    queued: int, taken: set[int]
) -> None:
    """(2300 + 200) / 10,000 tokens/s is the short prompts' SLO of 0.25 s."""
    found = to_convertible(
        staggered(), prefiller(queued=queued), convertible(), prompts=[Prompt(1, 200, 1.0)]
    )
    assert found == taken


def test_requests_that_wait_together_count_for_each_other() -> None:
    prompts = [Prompt(n, 250, 1.0) for n in range(25)]
    loads = [prefiller("p"), prefiller("q"), convertible()]
    found = to_convertible(staggered(SLOS, "p", "q"), *loads, prompts=prompts)
    assert found == {20, 21, 22, 23, 24}  # ten of 250 tokens are 0.25 s on each of two


def test_the_wait_for_the_windows_next_turn_counts() -> None:
    policy = staggered(replace(SLOS, default_pass_time=0.3))
    policy.dispatched(Turn("p", "end-forward"), 1, now=1.0)
    busy = prefiller(queued=100)
    assert to_convertible(policy, busy, convertible(), prompts=[Prompt(1, 100, 1.0)] * 2) == {1}
    late = policy.turns([busy, convertible()], 2, now=1.2, waiting=[Prompt(1, 100, 1.2)] * 2)
    assert late == []


def test_without_a_velocity_a_prefiller_computes_a_chunk_in_each_pass() -> None:
    policy = staggered(replace(SLOS, prefill_tokens_per_s=0.0))
    busy = replace(prefiller(queued=1000), chunk_tokens=500)  # two passes, and a part of one
    assert to_convertible(policy, busy, convertible(), prompts=[Prompt(1, 200, 1.0)]) == set()
    slow = replace(busy, queued_tokens=2400)
    assert to_convertible(policy, slow, convertible(), prompts=[Prompt(1, 200, 1.0)]) == {1}


@pytest.mark.parametrize(
    ("given", "costs", "constant"),
    [
        (10_000.0, Costs(prefill_tokens_per_s=9.0), Constant("V_P", 10_000.0, Source.GIVEN)),
        (0.0, Costs(prefill_tokens_per_s=9.0), Constant("V_P", 9.0, Source.PROFILE)),
        (0.0, Costs(), Constant("V_P", 10_000.0, Source.DEFAULT)),  # a chunk in each T̄
    ],
)
def test_the_velocity_by_which_it_is_armed_is_a_constant_of_the_decision(
    given: float, costs: Costs, constant: Constant
) -> None:
    policy = staggered(replace(SLOS, prefill_tokens_per_s=given))
    policy.learn(costs)
    busy = replace(prefiller(queued=1000), chunk_tokens=500)
    turns(policy, busy, convertible(), prompts=[Prompt(1, 200, 1.0)])
    assert policy.constants() == (Constant("T̄", PASS, Source.GIVEN), constant)


def test_a_convertible_is_no_part_of_the_interval() -> None:
    policy = staggered(SLOS, "p", "q")
    assert policy.interval == pytest.approx(PASS / 2)
    policy.ended("k", (), 0.9, now=0.0)
    assert policy.mean_pass_time == PASS
    policy.join("k", Role.PREFILL)
    assert policy.interval == pytest.approx(PASS / 3)


def test_a_convertibles_turn_does_not_delay_the_prefillers() -> None:
    policy = staggered()
    policy.dispatched(Turn("k", CONVERTIBLE, keys=()), 1, now=1.0)
    assert [t.worker_id for t in turns(policy, prefiller(), prompts=[Prompt(1, 1), Prompt(2, 1)])]


def test_a_convertible_waits_for_the_end_of_what_it_was_given() -> None:
    policy = staggered()
    policy.dispatched(Turn("k", CONVERTIBLE, keys=()), 1, now=1.0)
    burst = [Prompt(1, 200, 1.0, is_burst=True)]
    busy = convertible(task_depth=200, queued_tokens=200)
    assert to_convertible(policy, prefiller(), busy, prompts=burst) == set()
    policy.ended("k", (1,), PASS, now=1.0)
    assert to_convertible(policy, prefiller(), busy, prompts=burst) == {1}


def test_without_a_prefiller_convertibles_take_everything() -> None:
    policy = StaggeredBatch(SLOS)
    policy.join("k", Role.CONVERTIBLE)
    assert policy.interval == pytest.approx(PASS)
    assert [t.keys for t in turns(policy, convertible(), prompts=[Prompt(1, 200, 1.0)])] == [None]


# --- the state matrix -----------------------------------------------------------------------


def scheduler() -> SchedulerHarness:
    """One prefiller, and a convertible of chunk 100 that decodes 30 requests."""
    slos = {"ttft_short": 60.0, "ttft_medium": 60.0}
    cluster = SchedulerHarness(SchedulerSettings(dispatch="sbs", dispatch_params=slos))
    cluster.connect(make_info("p", Role.PREFILL))
    cluster.connect(make_info("k", Role.CONVERTIBLE), loads=(UnitLoad(0, 0, 30, 300, 70),))
    return cluster


def matrix(cluster: SchedulerHarness) -> dict[str, int]:
    return {unit.unit.worker_id: unit.capacity for unit in cluster.core.matrix()}


def test_c_avail_of_a_convertible_is_the_chunk_less_its_decode_batch() -> None:
    cluster = scheduler()
    assert matrix(cluster) == {"k": 70, "p": 100}
    cluster.submit(9, 60)
    cluster.post(replace(make_request(1, 40), is_burst=True))
    assert cluster.dispatched("p") == [9]
    assert cluster.dispatched("k") == [1]
    assert matrix(cluster) == {"k": 30, "p": 40}


def test_a_convertible_whose_batch_fills_its_chunk_takes_no_prompt() -> None:
    cluster = scheduler()
    cluster.connect(make_info("k", Role.CONVERTIBLE), loads=(UnitLoad(0, 0, 100, 300, 70),))
    cluster.post(replace(make_request(1, 40), is_burst=True))
    assert cluster.dispatched("k") == []
    assert cluster.dispatched("p") == [1]


def test_traffic_without_a_burst_never_reaches_a_convertible() -> None:
    cluster = scheduler()
    for n in range(1, 41):
        cluster.submit(n, 40)
        cluster.wait(0.01)
    cluster.accept("p")
    for _ in range(40):
        cluster.serve("p")
        cluster.wait(0.1)
    assert cluster.dispatched("k") == []
    assert sorted(cluster.dispatched("p")) == list(range(1, 41))


# --- reserved memory (equation 6) -------------------------------------------------------------


def unit(worker_id: str, kv: int, reserved: float = 0.0) -> DecodeUnit:
    return DecodeUnit(UnitId(worker_id, 0), 1, kv, 50, 100, 10, reserved_tokens=reserved)


@pytest.mark.parametrize("name", ["min-cost", "bucket-balance", "least-kv", "lex", "pascal"])
def test_every_placement_leaves_a_convertibles_reserve_to_prompts(name: str) -> None:
    policy = registry.make("placement", name)
    busy, reserved = unit("a", 900), unit("k", 501, reserved=500.0)
    assert [c.unit.worker_id for c in policy.place([Prompt()], [busy, reserved])] == ["a"]
    barely = unit("k", 500, reserved=500.0)
    assert [c.unit.worker_id for c in policy.place([Prompt()], [busy, barely])] == ["k"]


def test_an_answer_does_not_move_into_a_convertibles_reserve() -> None:
    policy = registry.make("placement", "min-cost")
    full, reserved = unit("a", 999), unit("k", 501, reserved=500.0)
    assert policy.boundary(Prompt(), full, [full, reserved]) is None


def test_the_reserve_is_what_arrives_in_the_ttft_slo_at_the_chunk_less_the_batch() -> None:
    """(100 − 30) / 0.1 s for 0.4 s are 280 tokens."""
    info = make_info("k", Role.CONVERTIBLE)
    convertible = Instance(info, 0.1)
    convertible.report((UnitLoad(0, 0, 30, 720, 28),), now=0.0)
    (found,) = convertible.decode_units()
    assert found.reserved_tokens == pytest.approx(280)
    assert found.is_open
    convertible.report((UnitLoad(0, 0, 30, 721, 27),), now=0.0)
    assert not convertible.decode_units()[0].is_open
    assert not convertible.is_open(0)


def test_the_reserve_follows_the_limits_in_force() -> None:
    """(100 − 30) / 0.05 s for 0.2 s are 280 tokens, and for 0.1 s 140."""
    limits = LimitsInForce(TokenLimits(0.2, 0.05))
    convertible = Instance(make_info("k", Role.CONVERTIBLE), 0.1, limits)

    def reserved() -> float:
        convertible.report((UnitLoad(0, 0, 30, 700, 30),), now=0.0)
        return convertible.decode_units()[0].reserved_tokens

    assert reserved() == pytest.approx(280)
    for promised in ((None, None), (1.0, 0.3)):  # nothing, and what the policy keeps anyway
        limits.promise(*promised)
        assert limits.now == TokenLimits(0.2, 0.05)
    limits.promise(0.1, None)
    assert reserved() == pytest.approx(140)


@pytest.mark.parametrize(("yields", "ttft"), [(False, 0.1), (True, 0.4)])
def test_a_class_that_comes_and_does_not_yield_tightens_the_limits(
    yields: bool, ttft: float
) -> None:
    scheduler = SchedulerHarness()
    scheduler.connect(make_info("p"))
    service = ServiceClass("quick", ttft=0.1, yields=yields)
    scheduler.submit(1, standing=Standing(service=service))
    assert scheduler.core._state.limits.now.ttft == ttft


def test_limits_are_those_of_the_dispatch_policy_or_the_papers() -> None:
    def limits(name: str, **params: float) -> TokenLimits:
        preset = find_preset(name).but({}, {"dispatch": params})
        return policy_settings(preset, Costs(profile=A100)).scheduler.limits

    assert limits("tokenscale") == limits("vllm-like") == TokenLimits(0.4, 0.1)
    assert limits("tokenscale", ttft_medium=0.2, tpot_slo=0.05) == TokenLimits(0.2, 0.05)


def test_a_small_pool_reserves_at_most_half() -> None:
    convertible = Instance(make_info("k", Role.CONVERTIBLE, chunk=10_000), 0.1)
    assert convertible.decode_units()[0].reserved_tokens == 500


def test_other_decoders_reserve_nothing() -> None:
    decoder = Instance(make_info("d", Role.DECODE), 0.1)
    decoder.report((UnitLoad(0, 0, 30, 1000, 0),), now=0.0)
    assert decoder.decode_units()[0].is_open
