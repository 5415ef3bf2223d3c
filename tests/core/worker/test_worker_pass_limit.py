"""Prompts of a pass take no longer than readers' classes promise between tokens (``headway``)."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from headway.core.worker.sequence import Sequence
from headway.cost.pass_time import PassTime
from headway.policies.batching import Batching
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.headway import Headway
from headway.service_class import NO_STANDING, ServiceClass, Standing
from tests.fakes.plans import Planned, make_planned

CHUNK = 512
TIMES = PassTime(0.010, 0.0001, 0.0005, 1e-7)
FAST, SLOW = (Standing(service=ServiceClass(f"{limit}", tpot=limit)) for limit in (0.03, 0.05))
YIELDS = Standing(service=ServiceClass("batch", tpot=0.02, yields=True))


def planned(policy: Batching | None = None, times: PassTime = TIMES) -> Planned:
    unit = make_planned(policy or Headway(), chunk=CHUNK, blocks=100_000)
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


def test_where_nobody_is_promised_a_pace_a_prompt_fills_the_chunk() -> None:
    for standing, reasoning in ((NO_STANDING, 0), (YIELDS, 0), (FAST, 400)):
        unit = planned()
        decodes(unit, 1, standing, reasoning)
        unit.come(9, 5_000, 5)
        assert CHUNK - 1 <= num_prompt_tokens(unit) <= CHUNK


def test_other_orders_fill_the_chunk_and_so_does_ours_before_it_knows_what_a_pass_costs() -> None:
    for unit in (planned(Fcfs()), planned(times=PassTime(0.01))):
        decodes(unit, 1, FAST)
        unit.come(9, 5_000, 5)
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
    unit.come(9, 5_000, 5)
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
    promised = [
        service.tpot
        for s in sequences.values()
        if s.decoding
        and s.output
        and (service := s.request.standing.service)
        and not service.yields
    ]
    limit = min((tpot for tpot in promised if tpot is not None), default=inf)
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
