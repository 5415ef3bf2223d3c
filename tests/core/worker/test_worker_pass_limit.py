"""Prompts of a pass take no longer than readers have tokens in hand, or classes promise them."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from headway.core.worker.sequence import Sequence
from headway.cost.pass_time import PassTime
from headway.policies.batching import Batching
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.headway import Headway, HeadwayParams
from headway.policies.batching.qoserve import Qoserve, QoserveParams
from headway.service_class import NO_STANDING, ServiceClass, Standing
from tests.fakes.plans import Planned, make_planned

CHUNK = 4096
PACE = 0.1
TIMES = PassTime(0.010, 0.0001, 0.0005, 1e-7)
FAST, SLOW = (Standing(service=ServiceClass(f"{limit}", tpot=limit)) for limit in (0.03, 0.05))
YIELDS, AT_ANY_PACE = (
    Standing(service=ServiceClass("batch", tpot=0.02, yields=True)),
    Standing(service=ServiceClass("chat", ttft=1.0)),
)


def planned(
    policy: Batching | None = None, times: PassTime = TIMES, reader_pace: float = PACE
) -> Planned:
    unit = make_planned(policy or Headway(), chunk=CHUNK, blocks=100_000, pace=reader_pace)
    unit.planner.turns.pass_time = times
    return unit


def decodes(unit: Planned, name: int, standing: Standing, reasoning: int = 0) -> Sequence:
    """A request that decodes."""
    sequence = unit.come(name, 8, 500, standing=standing, reasoning=reasoning)
    unit.step()
    assert sequence.decoding
    return sequence


def num_prompt_tokens(unit: Planned) -> int:
    return sum(len(item.token_ids) for item in unit.plan() if not item.sample or item.start == 0)


def test_a_prompt_fills_what_the_promise_leaves_beside_the_batch() -> None:
    unit = planned()
    for name in range(4):
        decodes(unit, name, SLOW)
    unit.come(9, 5_000, 5)
    # 95 % of 50 ms, less the pass of 4 requests with 8 to 11 tokens of KV each.
    assert num_prompt_tokens(unit) == int((0.0475 - 0.012 - 38e-7) / 0.0001)


def test_the_strictest_of_those_who_read_on_counts() -> None:
    unit = planned()
    decodes(unit, 1, SLOW)
    decodes(unit, 2, FAST)
    unit.come(9, 5_000, 5)
    assert num_prompt_tokens(unit) == int((0.0285 - 0.011 - 17e-7) / 0.0001)


def test_chunks_of_qoserve_grow_with_the_slack_of_who_decodes() -> None:
    unit = planned(Qoserve(QoserveParams(tpot=0.05)), reader_pace=0.05)
    reader = decodes(unit, 1, NO_STANDING)
    unit.come(9, 10_000, 5)
    late = num_prompt_tokens(unit)
    assert late == int((0.0475 - 0.0105 - 8e-7) / 0.0001)
    unit.now = reader.in_hand_until - 0.2
    assert num_prompt_tokens(unit) > 4 * late


def test_who_is_promised_nothing_has_the_next_token_when_the_others_are_read() -> None:
    for standing in (NO_STANDING, AT_ANY_PACE):
        unit = planned()
        decodes(unit, 1, standing)
        unit.come(9, 10_000, 5)
        assert num_prompt_tokens(unit) == int((0.095 - 0.0105 - 8e-7) / 0.0001)


def test_tokens_in_hand_are_time_for_prompts() -> None:
    unit = planned()
    decodes(unit, 1, NO_STANDING)
    unit.step()  # two tokens by 0.02 s: read at 0.21 s
    unit.come(9, 10_000, 5)
    assert num_prompt_tokens(unit) == int((0.95 * 0.19 - 0.0105 - 9e-7) / 0.0001)


def test_who_is_late_has_the_pace_of_reading() -> None:
    unit = planned()
    decodes(unit, 1, NO_STANDING)
    unit.now += 5.0
    unit.come(9, 10_000, 5)
    assert num_prompt_tokens(unit) == int((0.095 - 0.0105 - 8e-7) / 0.0001)


def test_the_pace_of_reading_is_the_order_s() -> None:
    unit = planned(Headway(HeadwayParams(reader_pace=0.05)), reader_pace=0.05)
    decodes(unit, 1, NO_STANDING)
    unit.come(9, 10_000, 5)
    assert num_prompt_tokens(unit) == int((0.0475 - 0.0105 - 8e-7) / 0.0001)


def test_a_promise_counts_whatever_its_reader_has_in_hand() -> None:
    unit = planned()
    decodes(unit, 1, SLOW)
    unit.step(9)
    unit.come(9, 10_000, 5)
    assert num_prompt_tokens(unit) == int((0.0475 - 0.0105 - 17e-7) / 0.0001)


def test_where_nobody_reads_a_prompt_fills_the_chunk() -> None:
    for standing, reasoning in ((YIELDS, 0), (FAST, 400), (NO_STANDING, 400)):
        unit = planned()
        decodes(unit, 1, standing, reasoning)
        unit.come(9, 10_000, 5)
        assert num_prompt_tokens(unit) >= CHUNK - 1
    unit = planned()
    unit.come(1, 8, 500, is_read=False)
    unit.step()
    unit.come(9, 10_000, 5)
    assert num_prompt_tokens(unit) >= CHUNK - 1


def test_other_orders_fill_the_chunk_and_so_does_ours_before_it_knows_what_a_pass_costs() -> None:
    for unit in (planned(Fcfs()), planned(times=PassTime(0.01))):
        decodes(unit, 1, FAST)
        unit.come(9, 10_000, 5)
        assert num_prompt_tokens(unit) >= CHUNK - 1


def test_beside_too_large_a_batch_prompts_have_a_fifth_of_the_pass() -> None:
    unit = planned(times=PassTime(0.020, 0.0001, 0.004))
    for name in range(3):
        decodes(unit, name, FAST)
    unit.come(9, 5_000, 5)
    assert num_prompt_tokens(unit) == int(0.25 * (0.020 + 3 * 0.004) / 0.0001)


def test_a_promise_that_nobody_can_keep_cuts_no_pass() -> None:
    unit = planned(times=PassTime(0.040, 0.0001, 0.0005))
    decodes(unit, 1, FAST)
    unit.come(9, 10_000, 5)
    assert num_prompt_tokens(unit) == CHUNK - 1


CLASSES = st.sampled_from([NO_STANDING, FAST, SLOW, YIELDS, Standing("a", service=FAST.service)])
COMERS = st.lists(st.tuples(st.integers(1, 2_000), st.integers(1, 30), CLASSES), max_size=12)
COSTS = st.builds(
    PassTime,
    st.floats(0, 0.05),
    st.floats(1e-6, 0.001),
    st.floats(0, 0.001),
    st.floats(0, 1e-6),
    st.floats(0, 1e-8),
)


@given(COMERS, COSTS)
def test_every_pass_keeps_what_it_promises_and_everybody_ends(
    comers: list[tuple[int, int, Standing]], times: PassTime
) -> None:
    """Save for what nobody keeps alone, and for what prompts have beside too large a batch."""
    unit = planned(times=times)
    for name, (prompt, output, standing) in enumerate(comers):
        unit.come(name, prompt, output, standing=standing)
        _check(unit, times)
    for _ in range(20_000):
        if not unit.state.units[0].sequences:
            return
        _check(unit, times)
    raise AssertionError("somebody is never served")


def _check(unit: Planned, times: PassTime) -> None:
    sequences = unit.state.units[0].sequences
    limit = min((_due_within(unit, s) for s in sequences.values()), default=inf)
    decoding = {key for key, s in sequences.items() if s.decoding}
    items = unit.plan()
    prompts = [item for item in items if item.key not in decoding]
    num_tokens = sum(len(item.token_ids) for item in prompts)
    context = sum(len(item.token_ids) * item.start for item in prompts)
    batch = [item for item in items if item.key in decoding]
    seconds = times.seconds(num_tokens, context, len(batch), sum(item.start for item in batch))
    beside = times.seconds(0, 0, len(batch), sum(item.start for item in batch))
    is_kept = seconds <= limit * (1 + 1e-9)
    is_fifth = seconds - beside <= 0.25 * beside * (1 + 1e-9)
    assert is_kept or is_fifth or num_tokens <= 1 or times.seconds(0, 0, 1, 1) > 0.95 * limit
    unit.run(items)


def _due_within(unit: Planned, sequence: Sequence) -> float:
    """Seconds to the next token of who reads on; inf for all others."""
    service = sequence.request.standing.service
    if not (sequence.decoding and sequence.output) or sequence.yields:
        return inf
    if service is not None and service.tpot is not None:
        return service.tpot
    return max(PACE, sequence.in_hand_until - unit.now)


def test_log_probabilities_of_a_prompt_are_a_part_of_its_time() -> None:
    unit = planned()
    unit.planner.turns.score_per_token = 0.0003
    decodes(unit, 1, SLOW)
    unit.come(9, 5_000, 5, num_prompt_logprobs=20)
    assert num_prompt_tokens(unit) == int((0.0475 - 0.0105 - 9e-7) / 0.0004)
