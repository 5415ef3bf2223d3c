"""The chunk of a pass: tenants whose prompts wait on one unit share it max-min fairly."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headway.core.token_counters import CREDIT
from headway.core.worker.fair_chunk import LEAD
from headway.cost.pass_time import PassTime
from headway.policies.batching.fcfs import Fcfs
from headway.service_class import ServiceClass, Standing
from tests.fakes.plans import Planned, make_planned

CHUNK = 64
BATCH = ServiceClass("batch", floor=0.25, yields=True)


def planned(chunk: int = CHUNK, blocks: int = 10_000) -> Planned:
    return make_planned(Fcfs(), chunk=chunk, blocks=blocks)


def prompt_tokens(unit: Planned) -> dict[str, int]:
    """Tokens of the next pass, by tenant."""
    found: Counter[str] = Counter()
    for item in unit.plan():
        sequence = unit.state.find(item.key)
        assert sequence is not None
        found[sequence.request.standing.tenant] += len(item.token_ids)
    return dict(found)


def test_a_short_prompt_is_computed_in_the_pass_that_a_long_one_of_another_tenant_fills() -> None:
    unit = planned()
    unit.come(1, 10_000, 1, arrival_at=1.0, standing=Standing("flood"))
    unit.come(2, 20, 1, arrival_at=2.0, standing=Standing("mine"))
    assert prompt_tokens(unit) == {"flood": 1, "mine": 20}


def test_a_flood_fills_a_part_of_the_passes_while_others_come_and_all_of_them_alone() -> None:
    unit = planned()
    unit.come(1, 30_000, 1, arrival_at=1.0, standing=Standing("flood"))
    assert prompt_tokens(unit) == {"flood": CHUNK}
    unit.come(2, 4, 1, arrival_at=2.0, standing=Standing("mine"))
    assert prompt_tokens(unit) == {"flood": CHUNK // 8 - 4, "mine": 4}
    unit.step(2)
    assert prompt_tokens(unit) == {"flood": CHUNK // 4}
    unit.step(200)
    assert prompt_tokens(unit) == {"flood": CHUNK}


FLOOD = Standing("flood", floods=True)


def test_prompts_with_log_probabilities_have_as_many_tokens_fewer_as_they_take_longer() -> None:
    unit = planned()
    unit.planner.turns.pass_time = PassTime(1.0, per_prefill_token=0.001)
    unit.come(1, 4, 1, arrival_at=1.0, standing=Standing("mine"))
    unit.step()
    unit.come(2, 10 * CHUNK, 1, arrival_at=2.0, standing=FLOOD, num_prompt_logprobs=20)
    assert prompt_tokens(unit) == {"flood": CHUNK // 4 // 2}, "unknown: as dear as the token"
    unit.planner.turns.score_per_token = 0.003
    assert prompt_tokens(unit) == {"flood": CHUNK // 4 // 4}
    unit.come(3, 4, 1, arrival_at=3.0, standing=Standing("mine"))
    assert prompt_tokens(unit) == {"flood": 1, "mine": 4}


def test_a_prompt_of_less_than_a_chunk_floods_if_its_log_probabilities_take_longer() -> None:
    unit = planned()
    unit.planner.turns.score_per_token = 1.0
    unit.come(1, 4, 1, arrival_at=1.0, standing=Standing("mine"))
    unit.step()
    unit.come(2, CHUNK - 4, 1, arrival_at=2.0, standing=Standing("other"), num_prompt_logprobs=1)
    assert prompt_tokens(unit) == {"other": CHUNK // 4 // 2}


def test_however_dear_log_probabilities_are_a_prompt_goes_on() -> None:
    unit = planned()
    unit.planner.turns.pass_time = PassTime(0.01, per_prefill_token=1e-9)
    unit.planner.turns.score_per_token = 0.003
    unit.come(1, 20, 1, arrival_at=2.0, standing=FLOOD, num_prompt_logprobs=20)
    unit.come(2, 10 * CHUNK, 1, arrival_at=1.0, standing=Standing("mine"))
    unit.finish()
    assert len(unit.ended) == 2


def test_whom_the_scheduler_calls_a_flood_has_short_passes_however_little_it_has_here() -> None:
    unit = planned()
    unit.come(1, 4, 1, arrival_at=1.0, standing=Standing("mine"))
    unit.step()
    unit.come(2, CHUNK // 2, 1, arrival_at=2.0, standing=FLOOD)
    assert prompt_tokens(unit) == {"flood": CHUNK // 4}


def test_the_last_part_of_a_long_prompt_comes_in_short_passes_too() -> None:
    unit = planned()
    unit.come(1, 4, 1, arrival_at=1.0, standing=Standing("mine"))
    unit.come(2, 2 * CHUNK, 1, arrival_at=2.0, standing=Standing("long"))
    got = [unit.step()[-1] for _ in range(8)]
    assert max(len(item.token_ids) for item in got) == CHUNK // 4


def test_a_burst_is_computed_before_a_flood_that_had_no_more_here() -> None:
    unit = planned()
    unit.come(1, 60, 1, arrival_at=1.0, standing=Standing("mine"))
    unit.step()
    unit.come(2, 60, 1, arrival_at=2.0, standing=FLOOD)
    unit.come(3, 60, 1, arrival_at=3.0, standing=Standing("mine"))
    assert prompt_tokens(unit) == {"flood": 1, "mine": 60}


def test_who_sends_burst_upon_burst_is_ahead_of_a_flood_by_its_lead_alone() -> None:
    unit = planned()
    unit.come(0, 30_000, 1, arrival_at=1.0, standing=FLOOD)
    had: Counter[str] = Counter()
    for name in range(1, 40):
        unit.come(name, CHUNK - 1, 1, arrival_at=2.0, standing=Standing("mine"))
        had += Counter(prompt_tokens(unit))
        unit.step()
    assert had["mine"] - had["flood"] <= (LEAD + 1) * CHUNK
    assert had["flood"] > 10 * CHUNK


def test_two_floods_alone_fill_all_of_the_passes() -> None:
    unit = planned()
    for number, name in enumerate(("a", "b")):
        unit.come(number, 15_000, 1, arrival_at=1.0, standing=Standing(name))
    assert prompt_tokens(unit) == {"a": CHUNK // 2, "b": CHUNK // 2}
    unit.step(200)
    assert prompt_tokens(unit) == {"a": CHUNK // 2, "b": CHUNK // 2}


def test_who_has_used_less_has_its_burst_computed_before_a_flood() -> None:
    unit = planned()
    unit.come(1, 30_000, 1, arrival_at=1.0, standing=Standing("flood"))
    unit.step(10)
    for name in range(2, 8):
        unit.come(name, 10, 1, arrival_at=2.0, standing=Standing("mine"))
    assert prompt_tokens(unit) == {"flood": 1, "mine": 60}


def test_prompts_of_one_tenant_are_computed_in_the_order_of_the_policy() -> None:
    unit = planned()
    unit.come(1, 10_000, 1, arrival_at=1.0, standing=Standing("mine"))
    unit.come(2, 20, 1, arrival_at=2.0, standing=Standing("mine"))
    assert [item.key.stream_id for item in unit.plan()] == [1]


def test_two_that_want_more_than_the_chunk_get_it_by_their_shares() -> None:
    unit = planned()
    unit.come(1, 500, 1, arrival_at=1.0, standing=Standing("a", 3.0))
    unit.come(2, 500, 1, arrival_at=2.0, standing=Standing("b", 1.0))
    assert prompt_tokens(unit) == {"a": 48, "b": 16}


def test_a_class_that_yields_counts_with_its_floor() -> None:
    unit = planned()
    unit.come(1, 500, 1, arrival_at=1.0, standing=Standing("a", 1.0, BATCH))
    unit.come(2, 500, 1, arrival_at=2.0, standing=Standing("b", 1.0))
    assert prompt_tokens(unit) == {"a": 13, "b": 51}


def test_tokens_of_a_tenant_that_finds_no_blocks_go_to_the_others() -> None:
    unit = planned(blocks=16)
    unit.come(1, 40, 1, arrival_at=1.0, standing=Standing("a"))
    unit.come(2, 60, 1, arrival_at=2.0, standing=Standing("b"))
    assert prompt_tokens(unit) == {"a": 40}


prompts = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 300)), min_size=1, max_size=12)


@given(prompts, st.integers(64, 200))
def test_nobody_has_more_than_who_wants_more_and_who_floods_alone_waits(
    wanted: list[tuple[str, int]], chunk: int
) -> None:
    unit = planned(chunk)
    asked: Counter[str] = Counter()
    for name, (tenant, num_tokens) in enumerate(wanted):
        unit.come(name, num_tokens, 1, arrival_at=float(name), standing=Standing(tenant))
        asked[tenant] += num_tokens
    got = prompt_tokens(unit)
    part = chunk // 64
    assert min(chunk // 8, asked.total()) <= sum(got.values()) <= chunk
    if asked.total() <= chunk or len(asked) == 1:
        assert sum(got.values()) == min(chunk, asked.total())
    for one in asked:
        for other in asked:
            alike = (asked[one] > chunk) == (asked[other] > chunk)
            if alike and got.get(one, 0) < asked[one] and got.get(other, 0) < asked[other]:
                assert abs(got.get(other, 0) - got.get(one, 0)) <= part


@given(prompts, st.integers(1, 200))
def test_every_prompt_of_every_tenant_is_computed(
    wanted: list[tuple[str, int]], chunk: int
) -> None:
    unit = planned(chunk)
    for name, (tenant, num_tokens) in enumerate(wanted):
        unit.come(name, num_tokens, 1, arrival_at=float(name), standing=Standing(tenant))
    unit.finish()
    assert len(unit.ended) == len(wanted)


comings = st.tuples(st.sampled_from("abc"), st.integers(1, 300), st.booleans())


@given(st.lists(st.one_of(st.none(), comings), max_size=120), st.integers(64, 200))
def test_two_tenants_whose_prompts_wait_are_given_alike_up_to_credit_and_lead(
    plan: list[tuple[str, int, bool] | None], chunk: int
) -> None:
    """None computes a pass; each tenant may flood at any time."""
    unit = planned(chunk)
    given_to, since = Counter[str](), dict[tuple[str, str], int]()
    for name, step in enumerate(plan):
        if step is not None:
            tenant, num_tokens, floods = step
            standing = Standing(tenant, floods=floods)
            unit.come(name, num_tokens, 1, arrival_at=float(name), standing=standing)
            continue
        items = unit.plan()
        for item in items:
            sequence = unit.state.find(item.key)
            assert sequence is not None
            given_to[sequence.request.standing.tenant] += len(item.token_ids)
        unit.run(items)
        held = {s.request.standing.tenant for s in unit.state.units[0].sequences.values()}
        for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
            if not {one, other} <= held:
                since.pop((one, other), None)
                continue
            ahead = given_to[one] - given_to[other]
            before = since.setdefault((one, other), ahead)
            assert abs(ahead - before) <= (CREDIT + LEAD + 2) * chunk
    unit.finish()
