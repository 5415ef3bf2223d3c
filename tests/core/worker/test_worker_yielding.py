"""What yields to a reader's first token, as a worker reports it: no more than it would get."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.blocks import blocks_for
from headway.cluster import Role, UnitLoad
from headway.messages import ChangeRole
from headway.policies import registry
from headway.policies.batching import Batching
from headway.policies.batching.headway import Headway, HeadwayParams
from tests.fakes.plans import Planned, make_planned
from tests.fakes.worker_core import dispatch, make_request, make_worker, reports

SIZE = 4
ORDERS = sorted(registry.REGISTRY["batching"])


def order(**params: float) -> Headway:
    """Whoever has six tokens that nobody reads is long."""
    return Headway(HeadwayParams(long_tokens=6, unread_wait=inf, **params))  # type: ignore[arg-type]  # by name


def crowded(policy: Batching, role: Role = Role.UNIFIED) -> Planned:
    """1 has reasoned for long, 2 for a while, 3 is read; 4 and 5 wait, and 5 opens an answer."""
    planned = make_planned(policy, blocks=12, block_size=SIZE, role=role)
    planned.come(1, 4, 60, reasoning=58)
    planned.step(7)
    planned.come(2, 4, 60, reasoning=58)
    planned.come(3, 4, 60)
    planned.step(2)
    planned.come(4, 30, 9, reasoning=8)
    planned.come(5, 40, 9)
    planned.plan()
    return planned


def load_of(planned: Planned) -> UnitLoad:
    unit = planned.state.units[0]
    return planned.planner.with_yielding(unit, unit.load(), now=planned.now)


def test_the_long_yield_their_blocks_and_who_reasons_the_chunk_but_no_reader_either() -> None:
    planned = crowded(order())
    load = load_of(planned)
    long = next(s for s in planned.state.units[0].sequences.values() if s.key.stream_id == 1)
    assert load.num_yielding_blocks == len(long.kv.blocks) == 4
    assert (load.queued_prefill_tokens, load.yielding_tokens) == (70, 30)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.CONVERTIBLE])
def test_nothing_is_said_to_yield_but_on_a_unified_worker(role: Role) -> None:
    load = load_of(crowded(order(), role))
    assert (load.yielding_tokens, load.num_yielding_blocks) == (0, 0)


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "headway"])
def test_under_any_other_order_nothing_is_said_to_yield(name: str) -> None:
    planned = crowded(registry.make("batching", name))
    assert load_of(planned) == planned.state.units[0].load()


def test_reports_have_it_and_a_change_of_role_ends_it() -> None:
    worker = make_worker(
        batching=order(), block_size=SIZE, report_interval=0.0, end_of_reasoning=(99,)
    )
    request = replace(make_request(1, 4, max_tokens=40), reasons=True)
    worker.post(dispatch(request))
    for _ in range(9):
        worker.run_pass()
    assert reports(worker)[-1].loads[0].num_yielding_blocks == 3
    worker.post(ChangeRole(Role.DECODE))
    worker.run_pass()
    assert reports(worker)[-1].loads[0].num_yielding_blocks == 0


def test_blocks_are_kept_free_ahead_of_need_only_where_what_yields_is_not_reported() -> None:
    for role, num_preempted in ((Role.UNIFIED, 0), (Role.DECODE, 1)):
        planned = make_planned(order(reserve=0.5), blocks=12, block_size=SIZE, role=role)
        for name in (1, 2):
            planned.come(name, 4, 20, reasoning=18)
        planned.step(11)
        assert sum(planned.preempted.values()) == num_preempted


# --- on any history -----------------------------------------------------------------------

COMING = st.lists(
    st.tuples(
        st.integers(1, 14),  # tokens of its prompt
        st.integers(2, 30),
        st.sampled_from(["reads", "reasons", "reasons to the end"]),
        st.integers(0, 6),  # passes before it comes
    ),
    max_size=14,
)


def play(
    coming: list[tuple[int, int, str, int]], watermark: float, host_tokens: int, policy: Batching
) -> Planned:
    planned = make_planned(
        policy, blocks=16, block_size=SIZE, watermark=watermark, host_tokens=host_tokens
    )
    for name, (prompt, output, kind, num_passes) in enumerate(coming):
        planned.step(num_passes)
        reasoning = {"reads": 0, "reasons": output // 2, "reasons to the end": output - 1}[kind]
        planned.come(name, prompt, output, reasoning=reasoning)
    return planned


@settings(max_examples=400, deadline=None)
@given(
    coming=COMING,
    watermark=st.sampled_from([0.0, 0.2]),
    host_tokens=st.sampled_from([0, 60]),
    share=st.floats(0.1, 1.0),
)
def test_who_is_sent_for_what_yields_has_blocks_in_the_next_pass(
    coming: list[tuple[int, int, str, int]], watermark: float, host_tokens: int, share: float
) -> None:
    """But for the growth of those before it: nobody passes who loses blocks to that."""
    planned = play(coming, watermark, host_tokens, order())
    planned.step()
    unit, load = planned.state.units[0], load_of(planned)
    num_ahead = load.queued_prefill_tokens - load.yielding_tokens
    room = load.num_free_blocks + load.num_yielding_blocks - blocks_for(num_ahead, SIZE)
    room -= len(unit.sequences) + int(watermark * 16)
    prompt = int(share * room) * SIZE
    if not 0 < prompt <= 60 - num_ahead - len(unit.sequences):
        return
    num_forced = planned.planner.preemptions.num_forced
    comes = planned.come(1000, prompt, 3)
    planned.plan()
    assert comes.kv.blocks or planned.planner.preemptions.num_forced > num_forced


@settings(max_examples=200, deadline=None)
@given(coming=COMING, watermark=st.sampled_from([0.0, 0.2]), host_tokens=st.sampled_from([0, 60]))
def test_asking_leaves_no_trace(
    coming: list[tuple[int, int, str, int]], watermark: float, host_tokens: int
) -> None:
    asked, unasked = (play(coming, watermark, host_tokens, order()) for _ in range(2))
    for _ in range(40):
        load_of(asked)
        asked.step()
        unasked.step()
    assert [s.key for s in asked.ended] == [s.key for s in unasked.ended]
    assert asked.preempted == unasked.preempted
    for planned in (asked, unasked):
        planned.finish()
        assert planned.state.units[0].pool.num_free == 16
