"""``sbs-warm``: a request with a cached prefix has an own unit, and waits for it in reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.blocks import waypoint
from headway.cluster import Role, UnitId
from headway.core.scheduler.events import SendToWorker
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Costs
from headway.messages import Dispatch, HeldRequest
from headway.policies.dispatch.protocol import UnitDebt, Waiting
from headway.policies.dispatch.sbs_warm import WarmStaggeredBatch
from headway.request import StreamKey
from headway.service_class import ServiceClass, Standing
from services.scheduler.explanations import decision_line
from tests.fakes.routed import RoutedPrompt, unit
from tests.fakes.scheduler_text import SchedulerHarness, make_info, make_request

STEP = waypoint(1)
PER_TOKEN = 1e-3
"""Seconds of a prompt token."""
CHUNK = 600
LENGTH = 32 * STEP + 1
"""Tokens of a prompt; all but the last are a hit, worth two seconds."""
MORE = CHUNK + 20
"""Tokens that fill a chunk."""


def settings_of(dispatch: str = "sbs-warm") -> SchedulerSettings:
    return SchedulerSettings(
        dispatch=dispatch,
        prefix_hits=True,
        costs=Costs(first_pass=0.1, prefill_per_token=PER_TOKEN),
    )


def cluster(
    *names: str, role: Role = Role.PREFILL, units: int = 1, dispatch: str = "sbs-warm"
) -> SchedulerHarness:
    scheduler = SchedulerHarness(settings_of(dispatch))
    for name in names:
        info = make_info(name, role, units=units, chunk=CHUNK, blocks=2000, max_len=20_000)
        scheduler.connect(info)
    return scheduler


def prompt(kind: int, length: int = LENGTH, *, tail: int = 0) -> tuple[int, ...]:
    return (*[kind] * (length - 1), tail)


def ask(scheduler: SchedulerHarness, name: int, kind: int, length: int = LENGTH) -> None:
    """Submit a request whose prompt begins as all others of its kind."""
    request = replace(make_request(name), prompt_token_ids=prompt(kind, length, tail=name))
    scheduler.post(replace(request, arrival_at=scheduler.now))


def sent_to(scheduler: SchedulerHarness, name: int) -> UnitId | None:
    """Where a request was dispatched to."""
    for action in scheduler.log:
        if isinstance(action, SendToWorker) and isinstance(action.message, Dispatch):
            for batch in action.message.batches:
                if any(request.request_id == f"r{name}" for request in batch.requests):
                    return UnitId(action.worker_id, batch.unit)
    return None


def warm(scheduler: SchedulerHarness, worker_id: str, name: int, kind: int) -> None:
    """Have one worker compute a prompt of a kind, while the others are away."""
    ask(scheduler, name, kind)
    scheduler.wait(0.2)
    at = sent_to(scheduler, name)
    assert at is not None
    assert at.worker_id == worker_id
    scheduler.accept(worker_id)
    scheduler.end_forward(worker_id, after=0.1, finished=(name,))


def serve(scheduler: SchedulerHarness, worker_id: str) -> None:
    """The worker ends what it was sent."""
    sent = scheduler.dispatches(worker_id)
    for each in sent:
        scheduler.accept(worker_id, each.dispatch_id)
    left = [n for n in scheduler.dispatched(worker_id) if n not in scheduler.finished]
    ids = tuple(each.dispatch_id for each in sent)
    scheduler.end_forward(worker_id, after=0.05, dispatch_ids=ids, finished=tuple(left))


def two_with_one_warm() -> SchedulerHarness:
    """Two idle workers, of which a has the beginning of kind 7."""
    scheduler = cluster("a")
    warm(scheduler, "a", 1, 7)
    scheduler.connect(make_info("b", chunk=CHUNK, blocks=2000, max_len=20_000))
    return scheduler


def test_an_idle_own_unit_is_sent_its_request_in_the_same_look() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7)
    assert sent_to(scheduler, 2) == UnitId("a", 0)
    ask(scheduler, 3, 8)  # nobody's: it goes to the other
    scheduler.wait(0.2)
    assert sent_to(scheduler, 3) == UnitId("b", 0)


def test_a_unit_that_owes_too_much_is_nobodys_own() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 9, 5000)  # to the instance that was served longest ago
    scheduler.wait(0.2)
    at = sent_to(scheduler, 2)
    assert at == UnitId("b", 0)
    ask(scheduler, 3, 9, 5000)  # both owe more than a chunk, b holds the beginning
    scheduler.wait(0.2)
    assert sent_to(scheduler, 3) == UnitId("a", 0)
    ask(scheduler, 4, 7)  # all but one of its tokens lie at a, which owes 5000
    scheduler.wait(5.0)
    scheduler.accept("b")
    scheduler.end_forward("b", after=0.1)
    scheduler.wait(0.2)
    assert sent_to(scheduler, 4) == UnitId("b", 0)


def test_a_request_waits_for_its_own_unit_and_goes_at_its_next_turn() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)  # fills a's chunk
    assert sent_to(scheduler, 2) == UnitId("a", 0)
    scheduler.wait(0.01)
    ask(scheduler, 3, 7)
    assert sent_to(scheduler, 3) is None
    assert scheduler.core.status().pools[0].num_waiting == 1
    scheduler.accept("a")
    scheduler.end_forward("a", after=0.1, finished=(2,))
    assert sent_to(scheduler, 3) == UnitId("a", 0)


def test_nobody_waits_longer_than_computing_elsewhere_takes() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)
    scheduler.accept("a")
    ask(scheduler, 3, 7)
    until = scheduler.now + 32 * STEP * PER_TOKEN
    while scheduler.now + 0.1 < until:
        assert sent_to(scheduler, 3) is None
        scheduler.end_forward("a", after=0.1, queued=MORE)  # it gets nowhere
    scheduler.wait(0.2)
    assert sent_to(scheduler, 3) == UnitId("b", 0)


def test_a_silent_unit_is_nobodys_own() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)
    ask(scheduler, 3, 7)
    scheduler.wait(0.4)
    assert sent_to(scheduler, 3) is None
    scheduler.wait(0.2)  # the watchdog: five mean pass times
    assert sent_to(scheduler, 3) == UnitId("b", 0)


def test_whoever_waits_for_a_unit_that_dies_is_anybodys_in_the_same_look() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)
    ask(scheduler, 3, 7)
    assert sent_to(scheduler, 3) is None
    scheduler.kill("a")
    assert sent_to(scheduler, 3) == UnitId("b", 0)


def test_nobody_is_said_to_wait_for_a_unit_that_has_died() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)
    ask(scheduler, 3, 7)
    (held,) = scheduler.core.status().pools[0].held
    assert held[0] == "r3"
    ask(scheduler, 4, 9, 5000)  # b is busy: no look has an instance that could be given anything
    scheduler.wait(0.06)
    assert sent_to(scheduler, 4) == UnitId("b", 0)
    scheduler.kill("a")
    assert sent_to(scheduler, 3) is None
    assert scheduler.core.status().pools[0].held == ()


def test_who_was_held_counts_for_flow_control_once_nobody_holds_its_prompt() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)
    ask(scheduler, 3, 7)
    ask(scheduler, 4, 9, 5000)
    scheduler.wait(0.06)
    scheduler.kill("a")
    scheduler.accept("b")
    for _ in range(10):  # b has room, but not for a prompt of this length
        scheduler.end_forward("b", after=0.2, running=1, kv_tokens=5000, free=100)
    assert sent_to(scheduler, 3) is None
    assert scheduler.core.status().pools[0].longest_wait_cycles > 0


def test_who_waits_for_its_unit_holds_up_nobody() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)
    ask(scheduler, 3, 7)
    ask(scheduler, 4, 8)
    scheduler.wait(0.06)  # the interval of two instances
    assert sent_to(scheduler, 4) == UnitId("b", 0)
    assert sent_to(scheduler, 3) is None


def test_cycles_of_waiting_for_ones_unit_throttle_nobody() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)
    ask(scheduler, 3, 7)
    for number in range(10):
        ask(scheduler, 10 + number, 20 + number, 30)
        scheduler.wait(0.04)
    assert sent_to(scheduler, 3) is None
    assert scheduler.core.status().pools[0].longest_wait_cycles == 0


def test_of_dp_units_the_own_one_is_meant() -> None:
    scheduler = cluster("a", units=4)
    for number in range(4):
        ask(scheduler, number + 1, number)
    scheduler.wait(0.2)
    serve(scheduler, "a")
    scheduler.wait(0.2)
    serve(scheduler, "a")
    first = [sent_to(scheduler, number + 1) for number in range(4)]
    assert len(set(first)) == 3  # the first of them ends before the others come
    for number in (2, 0, 3, 1):
        ask(scheduler, number + 11, number)
        assert sent_to(scheduler, number + 11) == first[number]
        serve(scheduler, "a")


BATCH = ServiceClass("batch", yields=True)


@pytest.mark.parametrize("flood", [Standing("flood"), Standing("victim", service=BATCH)])
def test_a_flood_of_cached_prompts_keeps_nobody_else_out_of_a_look(flood: Standing) -> None:
    scheduler = two_with_one_warm()
    for name, kind in ((2, 8), (3, 9)):
        ask(scheduler, name, kind, 5000)  # both are busy
        scheduler.wait(0.2)
    for number in range(10, 40):
        cached = replace(make_request(number), prompt_token_ids=prompt(7, LENGTH + 500))
        scheduler.post(replace(cached, standing=flood, arrival_at=scheduler.now))
    scheduler.submit(50, 30, standing=Standing("victim"), arrival_at=scheduler.now)
    for worker in "ab":
        serve(scheduler, worker)
    assert sent_to(scheduler, 50) is not None


@pytest.mark.parametrize(("role", "at"), [(Role.PREFILL, "b"), (Role.UNIFIED, "a")])
def test_a_small_hit_is_no_reason_to_go_anywhere_but_to_a_lone_unit(role: Role, at: str) -> None:
    scheduler = cluster("a", role=role)
    ask(scheduler, 1, 7, 2 * STEP)
    scheduler.accept("a")
    scheduler.wait(0.2)
    scheduler.end_forward("a", after=0.1, finished=(1,))
    scheduler.connect(make_info("b", role, chunk=CHUNK, blocks=2000, max_len=20_000))
    ask(scheduler, 2, 7, 2 * STEP)
    scheduler.wait(0.2)
    assert sent_to(scheduler, 2) == UnitId(at, 0)


def test_why_names_hit_debt_wait_and_the_runner_up() -> None:
    scheduler = two_with_one_warm()
    ask(scheduler, 2, 7, LENGTH + MORE)
    ask(scheduler, 3, 7)
    scheduler.accept("a")
    scheduler.end_forward("a", after=0.1, finished=(2,))
    lines = [json.loads(decision_line(each)) for each in scheduler.decisions()]
    (chosen,) = [each for line in lines for each in line["chosen"] if each[0] == "r3"]
    reason = chosen[4]
    assert chosen[1] == "a/0"
    assert reason["hit_tokens"] == 32 * STEP
    assert reason["owed_tokens"] == 0
    assert reason["cost"] == pytest.approx(PER_TOKEN)
    assert reason["runner_up"] == "b/0"
    assert reason["runner_up_cost"] == pytest.approx(LENGTH * PER_TOKEN)
    assert 0 < reason["wait"] < 32 * STEP * PER_TOKEN


# --- where nothing is shared ----------------------------------------------------------------


class Step(NamedTuple):
    kind: str
    length: int
    worker: int


STEPS = st.lists(
    st.builds(
        Step, st.sampled_from(["ask", "ask", "end", "wait"]), st.integers(1, 900), st.integers(0, 2)
    ),
    max_size=40,
)


def dispatches(
    dispatch: str, steps: list[Step], num_workers: int, units: int, role: Role, *, is_shared: bool
) -> list[tuple[str, tuple[tuple[int, tuple[str, ...]], ...]]]:
    """Who was sent what, in order, while a script runs."""
    names = "abc"[:num_workers]
    scheduler = cluster(*names, role=role, units=units, dispatch=dispatch)
    for number, step in enumerate(steps, start=1):
        if step.kind == "ask":
            ask(scheduler, number, 7 if is_shared else 1000 + number, step.length)
        elif step.kind == "wait":
            scheduler.wait(step.length / 5000)
        else:
            name = names[step.worker % num_workers]
            serve(scheduler, name)
    scheduler.wait(2.0)
    return [
        (
            action.worker_id,
            tuple(
                (batch.unit, tuple(request.request_id for request in batch.requests))
                for batch in action.message.batches
            ),
        )
        for action in scheduler.log
        if isinstance(action, SendToWorker) and isinstance(action.message, Dispatch)
    ]


@given(
    steps=STEPS,
    num_workers=st.integers(1, 3),
    units=st.sampled_from([1, 3]),
    role=st.sampled_from([Role.PREFILL, Role.UNIFIED]),
)
def test_where_nothing_is_shared_every_dispatch_is_that_of_sbs(
    steps: list[Step], num_workers: int, units: int, role: Role
) -> None:
    plain = dispatches("sbs", steps, num_workers, units, role, is_shared=False)
    assert dispatches("sbs-warm", steps, num_workers, units, role, is_shared=False) == plain


@given(steps=STEPS, role=st.sampled_from([Role.PREFILL, Role.UNIFIED]))
def test_with_one_unit_every_dispatch_is_that_of_sbs(steps: list[Step], role: Role) -> None:
    plain = dispatches("sbs", steps, 1, 1, role, is_shared=True)
    assert dispatches("sbs-warm", steps, 1, 1, role, is_shared=True) == plain


@given(
    kinds=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1200)), max_size=25),
    units=st.sampled_from([1, 2]),
    role=st.sampled_from([Role.PREFILL, Role.UNIFIED]),
)
def test_everybody_is_dispatched_once_whatever_is_shared(
    kinds: list[tuple[int, int]], units: int, role: Role
) -> None:
    scheduler = cluster("a", "b", role=role, units=units)
    for number, (kind, length) in enumerate(kinds, start=1):
        ask(scheduler, number, kind, length)
        scheduler.wait(0.01)
    for _ in range(60):
        serve(scheduler, "a")
        serve(scheduler, "b")
        scheduler.wait(0.1)
    sent = [
        request.request_id
        for name in "ab"
        for each in scheduler.dispatches(name)
        for batch in each.batches
        for request in batch.requests
    ]
    assert sorted(sent) == sorted(f"r{number}" for number in range(1, len(kinds) + 1))


def test_who_was_judged_is_not_judged_again_before_somebody_holds_something_else() -> None:
    policy, asked, version = WarmStaggeredBatch(), list[StreamKey](), [1]

    def matches(entry: Waiting) -> None:
        asked.append(entry.key)

    policy.matches, policy.matches_version = matches, lambda: version[0]
    policy.join("a", Role.UNIFIED)
    waiting = [RoutedPrompt(name) for name in range(3)]

    def judged() -> int:
        del asked[:]
        policy.turns([unit("a")], len(waiting), now=1.0, waiting=waiting)
        return len(set(asked[:-1]))  # the last is SBS's own look at who is next

    assert judged() == 3
    assert judged() == 0
    waiting.append(RoutedPrompt(3))
    assert judged() == 1
    version[0] += 1
    assert judged() == 4


def test_who_holds_what_may_differ_once_somebody_was_sent_something_or_may_go_elsewhere() -> None:
    scheduler = cluster("a")
    ask(scheduler, 1, 7)
    scheduler.wait(0.2)
    version = scheduler.core._pools["m"]._dispatching.matches_version
    seen = [version()]
    ask(scheduler, 2, 8)
    assert version() == seen[0]
    scheduler.core.restrict(make_request(2).key, ["a"])
    seen.append(version())
    scheduler.accept("a")
    scheduler.end_forward("a", after=0.1, finished=(1,))
    seen.append(version())
    assert len(set(seen)) == 3


# --- who passes a long prompt -------------------------------------------------------------


def busy_with_a_long_prompt(*, passes: bool = True, role: Role = Role.PREFILL) -> SchedulerHarness:
    """One worker that computes 5,000 tokens in chunks of 600."""
    scheduler = SchedulerHarness(replace(settings_of(), dispatch_params={"passes": passes}))
    scheduler.connect(make_info("a", role, chunk=CHUNK, blocks=2000, max_len=20_000))
    ask(scheduler, 1, 1, 5000)
    scheduler.accept("a")
    assert sent_to(scheduler, 1) == UnitId("a", 0)
    return scheduler


@pytest.mark.parametrize("role", [Role.PREFILL, Role.UNIFIED])
def test_short_prompts_pass_a_long_one_until_they_fill_a_chunk(role: Role) -> None:
    scheduler = busy_with_a_long_prompt(role=role)
    for name in (2, 3, 4):
        ask(scheduler, name, name, 200)
    assert [sent_to(scheduler, name) for name in (2, 3, 4)] == [UnitId("a", 0)] * 3
    ask(scheduler, 5, 5, 200)
    assert sent_to(scheduler, 5) is None
    scheduler.accept("a")
    scheduler.end_forward("a", after=0.1, queued=4800, finished=(2, 3, 4))
    assert sent_to(scheduler, 5) == UnitId("a", 0)


def test_a_prompt_of_over_half_its_length_waits_behind_a_long_one() -> None:
    scheduler = busy_with_a_long_prompt()
    ask(scheduler, 2, 2, 2501)
    assert sent_to(scheduler, 2) is None
    ask(scheduler, 3, 3, 2500)  # and holds up nobody who would pass
    assert sent_to(scheduler, 3) == UnitId("a", 0)


def test_nobody_passes_unless_the_workers_order_lets_them() -> None:
    scheduler = busy_with_a_long_prompt(passes=False)
    ask(scheduler, 2, 2, 200)
    assert sent_to(scheduler, 2) is None


def test_a_prompt_that_is_done_is_passed_by_nobody() -> None:
    scheduler = busy_with_a_long_prompt()
    scheduler.end_forward("a", after=0.1, finished=(1,))
    ask(scheduler, 2, 2, 700)
    scheduler.accept("a")
    ask(scheduler, 3, 3, 400)  # half of 5,000, but not of 700
    assert sent_to(scheduler, 3) is None


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_prompt_that_decodes_where_it_was_computed_is_before_nobody(is_reported: bool) -> None:
    """The report says so, or the next snapshot where that report was lost."""
    info = make_info("a", Role.UNIFIED, chunk=CHUNK, blocks=2000, max_len=20_000)
    scheduler = SchedulerHarness(replace(settings_of(), dispatch_params={"passes": True}))
    scheduler.connect(info)
    ask(scheduler, 1, 1, 700)
    scheduler.accept("a")
    if is_reported:
        scheduler.end_forward("a", after=0.1, begun=(1,))
    else:
        scheduler.connect(info, HeldRequest(StreamKey("g", 1), "r1", 0, 701, False, decoding=True))
    ask(scheduler, 2, 2, 5000)
    scheduler.accept("a")
    ask(scheduler, 3, 3, 1000)  # behind the 700 it would have more than a chunk before it
    assert sent_to(scheduler, 3) == UnitId("a", 0)


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    done=st.integers(0, 20_000),
    chunk=st.integers(1, 5000),
    least=st.integers(0, 5000),
)
def test_the_longest_that_may_pass_has_less_than_a_chunk_before_it(
    lengths: list[int], done: int, chunk: int, least: int
) -> None:
    owed = max(0, sum(lengths) - done)
    debt = UnitDebt(UnitId("a", 0), owed, len(lengths), 0, 0, prompts=sorted(lengths))

    def ahead(num_tokens: int) -> int:
        passed = sum(each for each in lengths if each >= 2 * num_tokens)
        return max(owed - passed, min(owed, sum(lengths) - passed))

    most = debt.passable(chunk, least)
    assert 0 <= most <= max(lengths) // 2
    assert not most or ahead(most) < chunk
    longer = (each for each in lengths if each >= least)
    assert all(ahead(n) >= chunk for n in (each // 2 for each in longer) if n > most)
