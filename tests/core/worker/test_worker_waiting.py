"""Sums over those who wait are kept up: each is what looking at everybody gives."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.worker.lifecycle import Stage
from headway.core.worker.room import yielding
from headway.core.worker.sequence import Sequence
from headway.core.worker.waiting import WaitingRequests, is_flood, name_of
from headway.cost.pass_time import PassTime
from headway.policies import registry
from headway.policies.batching.new_reader import NewReader
from headway.service_class import ServiceClass, Standing
from tests.fakes.plans import Planned, make_planned

CHUNK = 16
POLICIES = sorted(registry.REGISTRY["batching"])
BATCH = ServiceClass("batch", ttft=0.2, yields=True)
STANDINGS = (
    *(Standing(name) for name in "abc"),
    Standing("b", 3.0, floods=True),
    Standing("c", 1.0, BATCH),
)

histories = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(1, 24), st.integers(1, 24), st.sampled_from(STANDINGS)
    ),
    min_size=2,
    max_size=24,
)


def waiting_of(unit: Planned) -> list[Sequence]:
    found = unit.state.units[0].sequences.values()
    return [each for each in found if each.stage is Stage.WAITING]


def require_sums(unit: Planned) -> None:
    """The sums are those of a unit that looks at everybody now."""
    there, fresh = unit.state.units[0], WaitingRequests()
    fresh.chunk_tokens = there.chunk_tokens
    waiting = waiting_of(unit)
    for each in waiting:
        fresh.add(each)
    sums = there.waiting
    assert (len(sums), sums.by_name) == (len(fresh), fresh.by_name)
    assert sums.longest_known == fresh.longest_known
    assert {*there.holding} == there.sequences.keys() - {each.key for each in waiting}
    load, everybody = there.load(), [*there.sequences.values()]
    prompts = [each for each in everybody if not each.decoding]
    assert load.num_running == len(everybody) - len(prompts)
    assert load.queued_prefill_tokens == sum(each.num_queued for each in prompts)
    assert load.lost_tokens == sum(each.num_lost for each in prompts)
    no_blocks = [each for each in everybody if not each.kv.blocks]
    assert load.host_tokens == sum(each.kv.num_computed for each in no_blocks)
    for name in {name_of(each) for each in waiting}:
        those = [each for each in waiting if name_of(each) == name and not each.decoding]
        if those:
            assert sums.by_name[name].num_floods == sum(is_flood(e, CHUNK) for e in those)
            assert sums.by_name[name].num_tokens == sum(each.num_queued for each in those)


def require_yielding(unit: Planned) -> None:
    """What waits behind a newcomer is counted alike from both ends."""
    there, queue = unit.state.units[0], unit.planner._units[0].queue
    newcomer = NewReader(unit.now, there.pool.num_blocks * there.pool.block_size)
    rank = queue.rank(newcomer, unit.now).rank
    ran = [p[2].candidate for p in queue.running if p[0] > rank]
    waited = [p[2].candidate for p in queue.waiting if p[0] > rank]
    counted = [e.num_queued for e in ran if e.stage is Stage.RUNNING and not e.decoding]
    counted += [e.num_queued for e in waited if e.stage is Stage.WAITING]
    assert yielding(there, unit.policy, queue, now=unit.now)[0] == sum(counted)


@settings(max_examples=40)
@given(histories, st.sampled_from(POLICIES), st.integers(14, 40), st.sampled_from((0, 60)))
def test_what_is_kept_up_is_what_looking_at_everybody_gives(
    history: list[tuple[int, int, int, Standing]], policy: str, blocks: int, host_tokens: int
) -> None:
    unit = make_planned(
        registry.make("batching", policy), chunk=CHUNK, blocks=blocks, host_tokens=host_tokens
    )
    for number, (num_passes, prompt, output, standing) in enumerate(history):
        unit.come(number, prompt, output, standing=standing)
        require_sums(unit)
        for _ in range(num_passes):
            items = unit.plan()
            require_sums(unit)
            unit.run(items)
            require_sums(unit)
            require_yielding(unit)


def test_a_flood_shuts_nobody_out_who_is_less_far_ahead() -> None:
    """One tenant floods, one asks seldom; the third is a little ahead of that one."""
    unit = make_planned(registry.make("batching", "fcfs"), chunk=256, blocks=40_000)
    unit.planner.turns.pass_time = PassTime(0.01, 0.00005, 0.002)
    numbers = count()
    for _ in range(200):
        unit.come(next(numbers), 8, 400, standing=Standing("flood"))
    asked = []
    for n in range(600):
        if n % 60 == 0:
            unit.come(next(numbers), 4, 2, standing=Standing("seldom"))
        if n % 8 == 0:
            asked.append(unit.come(next(numbers), 40, 12, standing=Standing("steady")))
        unit.step()
    assert sum(each.stage is Stage.WAITING for each in asked) <= 1
