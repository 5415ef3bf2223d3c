"""Turns between tenants: places, blocks and the length of a pass go by what each was served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.token_counters import CREDIT, OUTPUT_WEIGHT
from headway.core.worker.lifecycle import Stage
from headway.core.worker.sequence import Sequence
from headway.cost.pass_time import PassTime, Share
from headway.forward_pass import PassItem
from headway.messages import CancelStream, Handoff, HandoffResult
from headway.policies import registry
from headway.policies.batching import Batching, Candidate
from headway.policies.batching.fcfs import Fcfs
from headway.request import Request, StreamKey
from headway.service_class import NO_STANDING, ServiceClass, Standing
from tests.fakes.paged import WorkerHarness, expected_output, transfer
from tests.fakes.plans import Planned, make_planned, names
from tests.fakes.worker_core import dispatch, make_request, make_worker, output_of, reports

CHUNK, PLACES = 16, 4
FLOOD, MINE = Standing("flood"), Standing("mine")
BATCH = ServiceClass("batch", ttft=1e6, yields=True)
POLICIES = sorted(registry.REGISTRY["batching"])


def flooded(policy: Batching | None = None, *, places: int = 0, blocks: int = 10_000) -> Planned:
    """A unit on which twelve requests of one tenant have decoded for a while."""
    unit = make_planned(policy or Fcfs(), chunk=64, blocks=blocks, max_running=places)
    for name in range(12):
        unit.come(name, 4, 400, standing=FLOOD)
    unit.step(20)
    return unit


def results(worker: WorkerHarness) -> list[HandoffResult]:
    return [each for each in worker.log if isinstance(each, HandoffResult)]


def tokens(items: list[PassItem]) -> Counter[str]:
    """Tokens of a pass, by tenant."""
    found: Counter[str] = Counter()
    for item in items:
        found[item.tenant] += len(item.token_ids)
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_a_newcomer_has_its_place_in_the_next_pass_under_every_policy(name: str) -> None:
    unit = flooded(registry.make("batching", name), places=PLACES)
    unit.come(100, 4, 8, standing=MINE)
    for _ in range(8):
        assert 100 in names(unit.step())
    assert [each.key.stream_id for each in unit.ended] == [100]


@pytest.mark.parametrize("floods", [True, False])
def test_who_comes_with_more_than_its_credit_goes_behind_who_was_there(floods: bool) -> None:
    """The flood is all here, or the scheduler says that it has the rest."""
    unit = make_planned(Fcfs(), chunk=64, max_running=PLACES, blocks=9999)
    unit.come(0, 4, 400, standing=MINE)
    unit.step(20)
    for name in range(1, 9 if floods else 90):
        unit.come(name, 4, 400, standing=replace(FLOOD, floods=floods))
    unit.step()
    unit.come(100, 4, 8, standing=MINE)
    assert all(100 in names(unit.step()) for _ in range(3))


def test_who_was_there_for_long_and_asks_for_much_goes_behind_no_hog() -> None:
    unit = make_planned(Fcfs(), chunk=64, max_running=1, blocks=9999)
    unit.come(0, 4, 4000, standing=FLOOD)
    unit.come(1, 4, 4000, standing=FLOOD)
    for name in range(2, 12):
        unit.come(name, 4, 1, standing=MINE)
        unit.step(50)
    for name in range(20, 110):
        unit.come(name, 4, 400, standing=MINE)
    unit.step()
    assert unit.planner.turns.levels == {"mine": 0.0, "flood": 1.0}


@pytest.mark.parametrize("name", POLICIES)
def test_a_newcomer_has_blocks_at_once_where_a_flood_has_taken_all(name: str) -> None:
    unit = flooded(registry.make("batching", name), blocks=80)
    unit.step(100)
    unit.come(100, 8, 8, standing=MINE)
    unit.step()
    for _ in range(7):
        assert 100 in names(unit.step())


def test_blocks_are_taken_from_who_holds_more_alone() -> None:
    """Two floods end with half of the blocks each, and preempt one another no more."""
    unit = make_planned(Fcfs(), chunk=64, blocks=24)
    for name in range(12):
        unit.come(name, 7, 1000, standing=FLOOD)
    unit.step(4)
    for name in range(20, 32):
        unit.come(name, 7, 1000, standing=MINE)
    unit.step(2)
    held: Counter[str] = Counter()
    for sequence in unit.state.units[0].sequences.values():
        held[sequence.tenant] += len(sequence.kv.blocks)
    assert held["mine"] <= held["flood"] <= held["mine"] + 3


@pytest.mark.parametrize("is_read", [False, True])
def test_who_was_served_less_loses_no_blocks_as_it_grows_though_the_flood_is_read(
    is_read: bool,
) -> None:
    """The policy spares readers, but not those of a tenant that is ahead."""
    unit = make_planned(registry.make("batching", "headway"), chunk=64, blocks=64)
    for number in range(24):
        unit.come(number, 8, 200, standing=FLOOD)
    unit.step(150)
    mine = unit.come(100, 8, 100, standing=MINE, is_read=is_read)
    while mine not in unit.ended:
        unit.step()
    assert mine.num_preemptions == 0


def of(standing: Standing, name: int, max_tokens: int = 5, prompt: int = 8) -> Request:
    return replace(make_request(name, prompt, max_tokens=max_tokens), standing=standing)


def test_who_waits_for_a_handoff_leaves_its_blocks_to_who_was_served_less() -> None:
    prefiller = make_worker(Role.PREFILL, blocks=8, watermark=0.0)
    prefiller.post(dispatch(*(of(FLOOD, name) for name in range(1, 5))))
    prefiller.run_all()
    assert prefiller.core.loads[0].num_free_blocks == 0
    prefiller.post(dispatch(of(MINE, 9), dispatch_id=2))
    prefiller.run_all()
    told = [
        (held.key.stream_id, held.awaiting_handoff) for held in reports(prefiller)[-1].prefilled
    ]
    assert told == [(4, False), (9, True)]
    prefiller.post(Handoff(StreamKey("g", 4), "w2", "w2:1", 0, 1))
    assert [(r.ok, r.retriable) for r in results(prefiller)] == [(False, True)]
    for name in (1, 2):
        prefiller.post(CancelStream(StreamKey("g", name)))
    prefiller.run_all()
    assert output_of(prefiller, 4) == expected_output(range(5, 13), 2), "its prompt, once more"


def test_a_full_decoder_refuses_who_was_served_less_once_and_makes_room() -> None:
    decoder, source = make_worker(Role.DECODE, blocks=8, watermark=0.0), make_worker(Role.PREFILL)
    decoder.post(dispatch(*(of(FLOOD, name, max_tokens=20) for name in range(1, 4))))
    for _ in range(3):
        decoder.run_pass()
    source.post(dispatch(of(MINE, 9, max_tokens=6)))
    source.run_all()
    order = Handoff(StreamKey("g", 9), "w2", "w2:1", 0, 1)
    source.post(order)
    assert not transfer(source, decoder)
    decoder.run_pass()
    decoder.run_pass()
    assert decoder.core.loads[0].num_free_blocks >= 3, "and the flood does not grow into them"
    assert reports(decoder)[-1].loads[0].num_free_blocks >= 2, "one is kept for others still"
    source.post(order)
    assert transfer(source, decoder)
    decoder.run_all()
    outputs = output_of(source, 9) + output_of(decoder, 9)
    assert outputs == expected_output(range(10, 18), 6)
    for name in range(1, 4):
        assert output_of(decoder, name) == expected_output(range(name + 1, name + 9), 20)


def refused_for_a_flood(prompt: int = 8) -> WorkerHarness:
    """A full decoder that has just refused a request of another tenant than the flood's."""
    decoder, source = make_worker(Role.DECODE, blocks=8, watermark=0.0), make_worker(Role.PREFILL)
    decoder.post(dispatch(*(of(FLOOD, name, max_tokens=20) for name in range(1, 4))))
    decoder.run_pass()
    source.post(dispatch(of(MINE, 9, prompt=prompt)))
    source.run_all()
    source.post(Handoff(StreamKey("g", 9), "w2", "w2:1", 0, 1))
    assert not transfer(source, decoder)
    return decoder


def test_room_is_kept_for_who_does_not_come_for_a_few_passes() -> None:
    decoder = refused_for_a_flood()
    decoder.run_all()
    assert decoder.ends.keys() == {1, 2, 3}


@pytest.mark.parametrize("prompt", [13, 17])
def test_no_room_is_kept_for_which_the_last_one_that_runs_would_stand_still(prompt: int) -> None:
    decoder = refused_for_a_flood(prompt)
    for name in (2, 3):
        decoder.post(CancelStream(StreamKey("g", name)))
    decoder.run_all()
    assert output_of(decoder, 1) == expected_output(range(2, 10), 20)


def test_who_made_room_in_host_memory_is_not_planned_for_before_it_is_there() -> None:
    decoder = make_worker(Role.DECODE, blocks=12, watermark=0.0, host_tokens=20)
    decoder.post(dispatch(of(FLOOD, 1, 20, prompt=20), of(FLOOD, 2, 20, prompt=8)))
    for _ in range(5):
        decoder.run_pass()
    source = make_worker(Role.PREFILL)
    source.post(dispatch(of(MINE, 9, prompt=21)))
    source.run_all()
    source.post(Handoff(StreamKey("g", 9), "w2", "w2:1", 0, 1))
    assert not transfer(source, decoder)
    decoder.run_all()  # the first has to grow, and all that is free is promised
    for name, prompt in ((1, 20), (2, 8)):
        assert output_of(decoder, name) == expected_output(range(name + 1, name + 1 + prompt), 20)


def test_an_empty_unit_remembers_nobody_whom_it_refused() -> None:
    decoder = refused_for_a_flood()
    for name in range(1, 4):
        decoder.post(CancelStream(StreamKey("g", name)))
    decoder.run_all()
    assert decoder.core.units[0].wanted == {}


def outnumbered() -> Planned:
    """A unit with a request of one tenant, to which a newcomer adds many."""
    unit = make_planned(Fcfs(), chunk=64, blocks=9999)
    unit.come(0, 4, 400, standing=MINE)
    unit.step(20)
    for name in range(1, 20):
        unit.come(name, 4, 400, standing=FLOOD)
    return unit


def test_a_newcomer_uses_its_credit_up_though_nobody_waits() -> None:
    unit = outnumbered()
    unit.step()
    assert unit.planner.turns.levels == {"mine": 1.0, "flood": 0.0}
    unit.step(7)
    assert unit.planner.turns.levels == {"mine": 0.0, "flood": 1.0}


def test_a_pass_that_is_long_for_one_counts_as_a_chunk_though_all_are_in_it() -> None:
    unit = outnumbered()
    unit.planner.turns.pass_time = PassTime(0.01, per_request=0.01)
    unit.step(12)
    assert tokens(unit.step()) == {"mine": 1, "flood": 2}


def test_of_two_that_were_served_alike_who_has_most_of_scarce_blocks_gives_some() -> None:
    """The order of arrival would take them from the last, who has one."""
    unit = make_planned(Fcfs(), chunk=1024, blocks=40)
    for name in range(12):
        unit.come(name, 9, 400, standing=FLOOD)
    unit.come(100, 3, 8, standing=MINE)
    for _ in range(8):
        assert 100 in names(unit.step())
    assert unit.planner.turns.levels == {"mine": 0.0, "flood": 0.5}


def test_what_a_flood_computes_once_more_makes_passes_no_longer() -> None:
    unit = flooded()
    unit.come(100, 4, 1000, standing=MINE)
    unit.step(140)  # the chunk is the flood's again
    unit.planner.turns.pass_time = PassTime(0.01, per_prefill_token=0.001, per_request=0.001)
    unit.step(4)
    for name in (3, 4, 5):
        unit.state.units[0].preempt(unit.state.units[0].sequences[StreamKey("g", name)])
    passes = [[len(item.token_ids) for item in unit.step()] for _ in range(120)]
    assert max(map(sum, passes)) == 12, "0.011 s of the flood, and as many of its own"
    assert max(map(max, passes)) > 1


class ForTheFlood(Fcfs):
    """Lets one tenant's requests lose their blocks to any."""

    preempts = True

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        return isinstance(victim, Sequence) and victim.tenant == "mine"


def test_no_policy_takes_blocks_for_a_tenant_that_is_ahead() -> None:
    unit = make_planned(ForTheFlood(), chunk=64, blocks=40)
    unit.come(100, 7, 400, standing=MINE)
    for name in range(6):
        unit.come(name, 7, 400, standing=replace(FLOOD, floods=True))
    unit.step(30)
    assert unit.planner.turns.levels["flood"] > unit.planner.turns.levels["mine"]
    request = replace(make_request(50, 24), standing=FLOOD)
    place, unit.lengths[request.key] = unit.state.units[0], 5
    place.want(unit.state.sequence(request, 0, Stage.ARRIVING, 0))
    unit.step(8)
    assert place.sequences[StreamKey("g", 100)].num_preemptions == 0


def test_a_decoder_keeps_some_blocks_free_for_whose_kv_may_come() -> None:
    unit = make_planned(Fcfs(), chunk=64, blocks=64, role=Role.DECODE)
    unit.come(0, 4, 8, standing=MINE)
    for name in range(1, 12):
        unit.come(name, 8, 400, standing=replace(FLOOD, floods=True))
    place, free = unit.state.units[0], list[tuple[int, int]]()
    for _ in range(260):
        unit.step()
        free.append((place.pool.num_free, place.load().num_free_blocks))
    beside, alone = free[20:130], free[150:]
    assert min(beside) == (2, 0)
    assert all(told == num - 2 for num, told in beside)
    assert min(alone) == (0, 0), "mine comes no more"
    assert all(told == num for num, told in alone)


def test_a_decoder_that_nobody_is_on_says_that_all_its_blocks_are_free() -> None:
    unit = make_planned(Fcfs(), chunk=64, blocks=64, role=Role.DECODE)
    unit.come(0, 4, 40, standing=MINE)
    unit.come(1, 8, 40, standing=replace(FLOOD, floods=True))
    place = unit.state.units[0]
    unit.step(30)
    assert place.num_kept > 0
    unit.step(30)
    assert not place.sequences
    assert place.load().num_free_blocks == place.pool.num_blocks


tenants = st.lists(st.sampled_from(("a", "b", "c")), min_size=6, max_size=30)
shares = st.fixed_dictionaries({name: st.sampled_from((1.0, 2.0)) for name in ("a", "b", "c")})


@given(tenants, shares, st.sampled_from(POLICIES))
def test_tenants_that_all_wait_decode_alike_up_to_their_credit(
    whose: list[str], share: dict[str, float], policy: str
) -> None:
    unit = make_planned(registry.make("batching", policy), chunk=CHUNK, max_running=2, blocks=9999)
    for number, name in enumerate((*whose, *"aabbcc")):
        unit.come(number, 1, 10_000, standing=Standing(name, share[name]))
    served: Counter[str] = Counter()
    for _ in range(400):
        served += tokens(unit.step())
    weighted = [OUTPUT_WEIGHT * served[name] / share[name] for name in "abc"]
    assert max(weighted) - min(weighted) <= (CREDIT + 3) * CHUNK


histories = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 24), st.integers(1, 24)), min_size=1, max_size=40
)


@given(histories, st.sampled_from(POLICIES), st.sampled_from((0, 2)), st.integers(14, 40))
def test_alone_a_tenant_has_the_plans_of_nobody_in_particular(
    history: list[tuple[int, int, int]], policy: str, places: int, blocks: int
) -> None:
    sides = [
        make_planned(
            registry.make("batching", policy), chunk=CHUNK, blocks=blocks, max_running=places
        )
        for _ in range(2)
    ]
    for side in sides:
        side.planner.turns.pass_time = PassTime(0.01, per_request=0.01)
    for number, (num_passes, prompt, output) in enumerate(history):
        plans = []
        for side, standing in zip(sides, (NO_STANDING, MINE), strict=True):
            side.come(number, prompt, output, standing=standing)
            steps = [side.step() for _ in range(num_passes)]
            plans.append([[(i.key, i.start, len(i.token_ids)) for i in step] for step in steps])
        assert plans[0] == plans[1]
        assert not sides[1].planner.turns.levels


def test_a_flood_makes_others_passes_at_most_twice_as_long_by_what_passes_cost_here() -> None:
    unit = flooded()
    unit.planner.turns.pass_time = PassTime(0.03, per_request=0.01)
    assert len(unit.step()) == 12
    unit.come(100, 4, 20, standing=MINE)
    unit.step()
    for _ in range(19):
        assert tokens(unit.step())["flood"] == 4
    assert tokens(unit.step()) == {"flood": 5}  # who was here may come again
    unit.step(130)
    assert tokens(unit.step()) == {"flood": 12}


def test_a_pass_far_longer_than_expected_bounds_a_floods_next_ones_until_costs_are_known() -> None:
    unit = flooded()
    turns = unit.planner.turns
    turns.pass_time = PassTime(0.03)  # as passes of few with a least time say
    unit.come(100, 4, 60, standing=MINE)
    unit.step()
    assert tokens(unit.step())["flood"] == 12
    turns.took([Share(batch=13)], 0.03 + 13 * 0.01)
    assert tokens(unit.step())["flood"] == 4
    for _ in range(200):  # as expected
        turns.took([Share(batch=4)], 0.03)
    assert tokens(unit.step())["flood"] == 12


def test_few_that_take_long_say_nothing_of_what_one_costs() -> None:
    unit = flooded()
    turns = unit.planner.turns
    turns.pass_time = PassTime(0.03)
    unit.come(100, 4, 20, standing=MINE)
    unit.step()
    turns.took([Share(batch=4)], 1.0)
    assert tokens(unit.step())["flood"] == 12


@pytest.mark.parametrize(
    ("pass_time", "prompt", "step"),
    [
        (PassTime(0.0, per_kv_token=0.01), 1, {"mine": 1, "flood": 1}),
        (PassTime(0.03, per_request=0.0001), 4, {"flood": 12, "mine": 1}),
    ],
)
def test_of_a_flood_one_at_least_goes_on_and_all_where_passes_hardly_grow(
    pass_time: PassTime, prompt: int, step: dict[str, int]
) -> None:
    unit = flooded()
    unit.planner.turns.pass_time = pass_time
    unit.come(100, prompt, 20, standing=MINE)
    unit.step()
    assert tokens(unit.step()) == step


def test_who_yields_stands_behind_all_tenants_until_it_is_due() -> None:
    unit = flooded(places=PLACES)
    unit.come(100, 4, 8, standing=replace(MINE, service=BATCH))
    unit.step(3)
    assert 100 not in names(unit.step())
    unit.now += 2e6
    assert 100 in names(unit.step())


def test_who_asks_for_log_probabilities_of_prompts_is_served_more_by_their_time() -> None:
    unit = make_planned(Fcfs(), chunk=64, blocks=9999, max_running=1)
    unit.planner.turns.pass_time = PassTime(0.001, per_prefill_token=0.001)
    unit.planner.turns.score_per_token = 0.009
    for name in range(200):
        unit.come(name, 16, 1, standing=Standing("plain"))
        unit.come(name + 200, 16, 1, standing=Standing("scored"), num_prompt_logprobs=20)
    had: Counter[str] = Counter()
    for _ in range(200):
        had += tokens(unit.step())
    assert had["plain"] > 5 * had["scored"] > 0
