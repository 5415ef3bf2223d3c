"""Tenants share a model's dispatches by tokens; yielding classes take what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.blocks import blocks_for
from headway.cluster import Role
from headway.core.scheduler.events import WorkerReported
from headway.core.scheduler.places import Tracked
from headway.core.scheduler.windows import TenantWindows
from headway.core.token_counters import TokenCounters
from headway.messages import CancelStream, EndForward, FinishedRequest
from headway.policies.packing.flow_control import FlowControl, FlowLevel
from headway.request import FinishReason
from headway.service_class import ServiceClass, Standing
from tests.fakes.scheduler_text import (
    SchedulerHarness,
    idle_loads,
    key,
    make_info,
    make_request,
    short_pass,
)
from tests.fakes.waiting import waiting

BATCH = ServiceClass("batch", ttft=1000.0, floor=0.1, yields=True)
AGENT = ServiceClass("agent", ttft=5.0)


def windows(*entries: Tracked, num_cycles: int = 1000) -> TenantWindows:
    made = TenantWindows(FlowControl(num_cycles=num_cycles))
    for entry in entries:
        made.add(entry)
    return made


def names(entries: Sequence[Tracked]) -> list[int]:
    return [entry.key.stream_id for entry in entries]


def dispatch(made: TenantWindows, num_tokens: int) -> list[int]:
    """Dispatch whose turn it is, with so many tokens together."""
    entries: list[Tracked] = []
    for entry in made.in_turn(made.admitted):
        if sum(each.num_tokens for each in entries) < num_tokens:
            entries.append(entry)
    made.dispatched(entries)
    return sorted(names(entries))


def test_a_flood_waits_behind_the_tenant_that_was_served_less() -> None:
    made = windows(*(waiting(n, "flood") for n in range(50)), waiting(90, "small"))
    assert dispatch(made, 20) == [0, 90]
    assert dispatch(made, 20) == [1, 2]


def test_one_tenant_without_classes_is_packed_as_ever() -> None:
    made = windows(*(waiting(n) for n in range(5)))
    legacy, new = made.split()
    assert made.groups(legacy, new, 10) == [(legacy, new)]


def test_a_newcomer_gets_no_credit_for_the_time_before() -> None:
    made = windows(*(waiting(n, "old") for n in range(40)))
    for _ in range(10):
        dispatch(made, 10)
    for n in range(50, 90):
        made.add(waiting(n, "new"))
    assert len([n for n in dispatch(made, 100) if n >= 50]) == 5


def test_a_share_of_two_gets_twice_the_tokens() -> None:
    made = windows(
        *(waiting(n, "one") for n in range(60)),
        *(waiting(n, "two", share=2.0) for n in range(60, 120)),
    )
    assert len([n for n in dispatch(made, 300) if n >= 60]) == 20


def test_output_tokens_count_once_they_are_known() -> None:
    made = windows(
        *(waiting(n, "talks") for n in range(20)), *(waiting(n, "is brief") for n in range(20, 40))
    )
    legacy, new = made.split()
    first = next(entry for entry in [*legacy, *new] if entry.key.stream_id == 0)
    made.dispatched([first])
    made.charges.settle(first, 25)
    assert dispatch(made, 60) == [20, 21, 22, 23, 24, 25]


def test_what_a_worker_gives_back_is_charged_once() -> None:
    made = windows(waiting(1, "a"), waiting(2, "b"))
    legacy, new = made.split()
    entry = [*legacy, *new][0]
    made.dispatched([entry])
    before = made.counters.of("a")
    made.take_back(entry)
    assert made.counters.of("a") == before - 10


def test_within_a_tenant_the_first_due_goes_first() -> None:
    made = windows(waiting(1, service=AGENT), waiting(2), waiting(3, service=AGENT))
    assert names(made.in_turn([*made.admitted])) == [2, 1, 3]


def late(*late_names: int) -> Callable[[Tracked], bool]:
    """These step back."""
    return lambda entry: entry.key.stream_id in late_names


def test_who_steps_back_lets_its_own_tenant_pass_and_no_other() -> None:
    made = windows(*(waiting(n, "a") for n in (1, 2, 3)), waiting(4, "b"), waiting(5, "b"))
    in_turn = names(made.in_turn(made.admitted, late(1, 2)))
    assert [n for n in in_turn if n <= 3] == [3, 1, 2]
    assert [n for n in in_turn if n >= 4] == [4, 5]
    assert {*in_turn[:2]} == {3, 4}


def test_within_a_class_who_steps_back_goes_last_whenever_it_is_due() -> None:
    made = windows(*(waiting(n, service=AGENT) for n in (1, 2, 3)))
    assert names(made.in_turn(made.admitted, late(1))) == [2, 3, 1]


def test_a_class_that_yields_asks_nobody_who_is_late() -> None:
    made = windows(waiting(1, service=BATCH), waiting(2, service=BATCH), waiting(3))
    assert names(made.in_turn(made.admitted, late(1))) == [3, 1, 2]


def test_those_that_step_back_hide_nobody_from_a_turn() -> None:
    made = windows(*(waiting(n, "a") for n in range(20)), waiting(50, "b"))
    steps_back = late(*range(15))
    legacy, new = made.split(num_tokens=10, steps_back=steps_back)
    seen = names([*legacy, *new])
    assert seen == [0, 1, 2, 3, 15, 16, 17, 18, 50]


def test_of_one_tenant_those_that_step_back_are_packed_behind_readers_in_time() -> None:
    made = windows(*(waiting(n) for n in range(4)))
    groups = made.groups(*made.split(), 10, late(0, 2))
    assert [names([*left, *new]) for left, new in groups] == [[1, 3], [0, 2]]


def test_yielding_requests_take_what_is_left() -> None:
    made = windows(waiting(1, service=BATCH), waiting(2), waiting(3))
    legacy, new = made.split()
    groups = [names([*left, *fresh]) for left, fresh in made.groups(legacy, new, 20)]
    assert groups == [[2, 3], [1]]
    assert [len(left) + len(fresh) for left, fresh in made.groups(legacy, new, 10)] == [1, 1, 1]


def test_a_floor_is_kept_under_a_flood_of_others() -> None:
    batch = [waiting(n, "b", 10, BATCH) for n in range(1000, 1100)]
    made = windows(*batch)
    got = total = 0
    for n in range(400):
        made.add(waiting(n, "x", 10))
        made.add(waiting(n + 400, "y", 10))
        taken = dispatch(made, 10)
        got += 10 * len([each for each in taken if each >= 1000])
        total += 10 * len(taken)
    assert 0.1 * total - 20 <= got <= 0.1 * total + 20


def test_a_flood_closes_its_own_door_alone() -> None:
    made = windows(*(waiting(n, "flood") for n in range(5)), num_cycles=2)
    for cycle in range(8):
        made.end_cycle(1.0, now=float(cycle))
    assert made.level("flood") is FlowLevel.REJECTING
    assert made.level("small") is FlowLevel.OPEN
    made.add(waiting(90, "small"))
    assert sorted(names([*made.admitted])) == [0, 1, 2, 3, 4, 90]


def test_who_comes_while_turns_rest_has_waited_since_then() -> None:
    made = windows(waiting(0, "back"), num_cycles=2)
    made.end_cycle(0.1, now=0.0)
    made.remove(key(0))
    made.add(waiting(9000, "back"))
    made.add(waiting(9001, "new"))
    made.end_cycle(0.1, now=9.1, rested=True)
    assert {made.level("back"), made.level("new")} == {FlowLevel.OPEN}
    made.end_cycle(0.1, now=9.9, rested=True)
    assert made.level("new") is FlowLevel.REJECTING


def test_who_is_at_the_door_keeps_nobody_else_from_being_next() -> None:
    made = windows(waiting(0, "shut", service=BATCH), num_cycles=1)
    for cycle in range(10):
        made.end_cycle(0.1, now=float(cycle))
    assert made.level("shut") is not FlowLevel.OPEN
    made.add(waiting(1, "shut"))
    made.add(waiting(2, "small"))
    made.counters.charge("small", 5.0)
    assert made.next is not None
    assert names([made.next]) == [2]


def test_the_scheduler_dispatches_the_tenant_that_has_had_less() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p", chunk=20))
    for n in range(1, 10):
        scheduler.post(replace(make_request(n), standing=Standing("flood")))
    scheduler.post(replace(make_request(50), standing=Standing("small")))
    assert scheduler.dispatched("p") == [1]
    scheduler.serve("p")
    assert 50 in scheduler.dispatched("p")
    assert len(scheduler.dispatched("p")) < 10


def test_a_prompt_of_several_chunks_takes_no_room_from_a_tenant_that_had_less() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p", chunk=20))
    scheduler.post(replace(make_request(1, 500), standing=Standing("flood")))
    for n in range(2, 5):
        scheduler.post(replace(make_request(n, 500), standing=Standing("flood")))
    scheduler.post(replace(make_request(50), standing=Standing("small")))
    assert scheduler.dispatched("p") == [1]
    scheduler.serve("p", queued=480)
    scheduler.wait(1.0)
    assert scheduler.dispatched("p") == [1, 50]


def ended(scheduler: SchedulerHarness, number: int, num_output: int, reason: FinishReason) -> None:
    """The worker reports a request's end, and holds nothing."""
    end = FinishedRequest(key(number), 0, 10, num_output, reason)
    report = EndForward(1, 0.1, (), idle_loads(scheduler.infos["p"]), (), (end,))
    scheduler.post(WorkerReported("p", report), after=0.1)


def test_a_newcomers_credit_does_not_put_its_long_prompt_before_who_fits_beside_it() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p", chunk=20))
    for n in range(1, 40):
        scheduler.post(replace(make_request(n), standing=Standing("small")))
        scheduler.serve("p")
        ended(scheduler, n, 1, FinishReason.LENGTH)
        scheduler.wait(1.0)
    scheduler.post(replace(make_request(50, 60), standing=Standing("flood")))
    scheduler.serve("p", queued=40)
    scheduler.post(replace(make_request(60), standing=Standing("small")))
    scheduler.wait(1.0)
    assert scheduler.dispatched("p")[-2:] == [50, 60]
    scheduler.post(replace(make_request(70, 60), standing=Standing("flood")))
    scheduler.post(replace(make_request(61), standing=Standing("small")))
    scheduler.serve("p", queued=40)
    scheduler.wait(1.0)
    assert scheduler.dispatched("p")[-1] == 61, "its own flood waits"


@pytest.mark.parametrize(
    ("expected", "had", "next_in_turn"),
    [(1000.0, 3, "a"), (0.0, 500, "b"), (1000.0, 500, "b"), (0.0, 3, "a")],
)
def test_a_cancelled_request_is_charged_for_what_it_had(
    expected: float, had: int, next_in_turn: str
) -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p", chunk=20))

    def ask(number: int, tenant: str, num_prompt: int = 20, output: float = 0.0) -> None:
        request = replace(make_request(number, num_prompt), standing=Standing(tenant))
        scheduler.post(replace(request, predicted_output_tokens=output))

    ask(1, "a", 10, expected)
    scheduler.serve("p", running=1)
    scheduler.post(CancelStream(key(1)))  # a client that leaves, or a stop string
    ended(scheduler, 1, had, FinishReason.CANCELLED)
    ask(2, "b", 10)
    scheduler.serve("p", running=1)
    ended(scheduler, 2, 5, FinishReason.STOP)
    ask(3, "c")
    numbers = {"a": 4, "b": 5}
    for tenant, number in numbers.items():
        ask(number, tenant)
    scheduler.serve("p")
    scheduler.wait(1.0)
    assert scheduler.dispatched("p")[:4] == [1, 2, 3, numbers[next_in_turn]]


def floods(scheduler: SchedulerHarness, worker_id: str) -> dict[int, bool]:
    """Words of a dispatch about each request's tenant."""
    return {
        request.stream_id: request.standing.floods
        for order in scheduler.dispatches(worker_id)
        for batch in order.batches
        for request in batch.requests
    }


def test_a_worker_is_told_whose_tenant_has_more_waiting_than_a_pass_computes() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p", chunk=20))
    scheduler.post(replace(make_request(50), standing=Standing("small")))
    for n in range(1, 10):
        scheduler.post(replace(make_request(n), standing=Standing("flood")))
    for _ in range(12):
        scheduler.serve("p")
        scheduler.wait(1.0)
    told = floods(scheduler, "p")
    assert not told[50]
    assert told[1]
    assert not told[9], "nothing waited behind it"


def test_a_tenant_alone_never_floods() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p", chunk=20))
    for n in range(1, 10):
        scheduler.post(replace(make_request(n), standing=Standing("alone")))
    scheduler.serve("p")
    assert set(floods(scheduler, "p").values()) == {False}


def test_without_another_tenant_the_backlog_is_computed_first() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p", chunk=20))
    for n in range(1, 5):
        scheduler.post(replace(make_request(n, 500), standing=Standing("flood")))
    scheduler.serve("p", queued=480)
    scheduler.wait(1.0)
    assert scheduler.dispatched("p") == [1]


def test_who_has_used_less_may_send_a_burst_ahead_of_a_flood() -> None:
    made = windows(*(waiting(n, "flood") for n in range(50)))
    made.counters.credit = 30.0
    for _ in range(10):
        dispatch(made, 10)
    for n in range(80, 90):
        made.add(waiting(n, "small"))
    assert dispatch(made, 30) == [80, 81, 82]


def test_who_asks_for_more_than_its_credit_has_none() -> None:
    made = windows(*(waiting(n, "small") for n in range(14)))
    made.counters.credit = 60.0
    for _ in range(10):
        dispatch(made, 10)
    for n in range(30, 50):
        made.add(waiting(n, "flood"))
    assert dispatch(made, 20) == [10, 11]
    assert dispatch(made, 20) == [12, 30]


def test_a_flood_has_the_others_looked_at_once_and_not_at_each_of_its_requests() -> None:
    counters = TokenCounters(60.0)
    counters.charge("small", 100.0)
    counters.join("flood", [100.0])
    looked_at: list[str] = []

    def small() -> Iterator[str]:
        looked_at.append("small")
        yield "small"

    for _ in range(3):
        counters.withdraw("flood", small())
    assert looked_at == ["small"]
    assert counters.of("flood") == 115.0


def test_a_long_request_behind_is_packed_after_the_short_ones_whose_turn_it_is() -> None:
    made = windows(waiting(1, "flood", 100), waiting(2, "small"), waiting(3, "small"))
    made.counters.charge("flood", 50.0)
    groups = made.groups(*made.split(), 40)
    assert [names([*left, *fresh]) for left, fresh in groups] == [[2, 3], [1]]


def test_a_turn_looks_at_those_in_front_of_each_tenant_and_class() -> None:
    made = windows(*(waiting(n, "flood", 10) for n in range(10)), waiting(90, "small", 500))
    made.end_cycle(0.1, now=1.0)
    for n in range(10, 50):
        made.add(waiting(n, "flood", 10))
    for n in range(50, 60):
        made.add(waiting(n, "flood", 10, service=BATCH))
    made.add(waiting(91, "small", 10))
    legacy, new = made.split(num_tokens=40)
    assert names(legacy) == [*range(10), 90]
    assert names(new) == [*range(10, 16), *range(50, 60)]


def test_a_turn_looks_at_no_more_of_a_flood_than_might_be_packed() -> None:
    made, looked_at = windows(*(waiting(n, "flood", 10) for n in range(500))), list[Tracked]()
    made.add(waiting(900, "small", 10))

    def takes(entry: Tracked) -> bool:
        looked_at.append(entry)
        return True

    assert names(made.split(takes=takes, num_tokens=40)[1]) == [*range(16), 900]
    assert len(looked_at) <= 18


def test_a_tenant_leaves_places_to_wait_for_the_others() -> None:
    scheduler = SchedulerHarness(replace(short_pass(), max_waiting=10))
    for n in range(1, 20):
        scheduler.post(replace(make_request(n), standing=Standing("flood")))
    assert len(scheduler.rejected()) == 11
    scheduler.post(replace(make_request(50), standing=Standing("small")))
    assert len(scheduler.rejected()) == 11


histories = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.integers(1, 60)),  # a tenant's prompt
        st.integers(0, 20),  # the end of one of those that were dispatched
    ),
    max_size=40,
)


@settings(max_examples=50)
@given(histories, st.sampled_from(("immediate", "lmetric", "sglang")))
def test_whoever_was_served_least_finds_the_blocks_of_those_who_were_served_more(
    history: list[tuple[str, int] | int], dispatch: str
) -> None:
    """The worker computes no more than its first tokens, and gives no blocks back by itself."""
    scheduler = SchedulerHarness(replace(short_pass(), dispatch=dispatch))
    info = make_info("w", Role.UNIFIED, chunk=1000, blocks=12)
    scheduler.connect(info)
    for number, step in enumerate(history):
        if isinstance(step, tuple):
            tenant, num_tokens = step
            scheduler.post(replace(make_request(number, num_tokens), standing=Standing(tenant)))
        elif running := [n for n in scheduler.dispatched("w") if n not in scheduler.finished]:
            scheduler.serve("w", queued=0, free=0, finished=(running[step % len(running)],))
        require_blocks_for_the_least(scheduler)


def require_blocks_for_the_least(scheduler: SchedulerHarness) -> None:
    core = scheduler.core
    instance, window = core._instances["w"], core._pools["m"].window
    counter, size = window.counters.of, instance.info.block_size
    claims = Counter[str]()
    for entry in core._state.tracked.values():
        if entry.worker_id == "w":
            claims[entry.tenant] += blocks_for(entry.num_tokens, size)
    assert dict(instance.claims(0)) == dict(claims)
    assert max(claims.values(), default=0) <= instance.info.num_blocks
    least = window.next
    if least is None or not any(counter(name) > counter(least.tenant) for name in claims):
        return
    left = instance.info.num_blocks - sum(
        claims[name]
        for name in claims
        if name == least.tenant or counter(name) <= counter(least.tenant)
    )
    spare = instance.room(0).num_spare_blocks
    assert blocks_for(least.num_tokens, size) + spare > left
