"""Orders to a worker that has not taken earlier ones: tenants take turns, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.scheduler.order_turns import MOST_UNTAKEN, OrderTurns
from headway.messages import (
    CancelHandoff,
    CancelStream,
    Dispatch,
    Drain,
    GiveBack,
    Handoff,
    Order,
    Tuned,
    UnitBatch,
)
from headway.request import StreamKey
from headway.service_class import Standing
from tests.fakes.scheduler_rig import key, make_request


def dispatch(stream_id: int, tenant: str = "a") -> Dispatch:
    request = replace(make_request(stream_id), standing=Standing(tenant=tenant))
    return Dispatch(stream_id, (UnitBatch(0, (request,)),))


def handoff(of: StreamKey) -> Order:
    return Handoff(of, "d", "d:1", 0, 1)


def cancel_handoff(of: StreamKey) -> Order:
    return CancelHandoff(of, "d")


def ids(orders: list[Order]) -> list[int]:
    return [order.dispatch_id for order in orders if isinstance(order, Dispatch)]


def test_a_flood_waits_and_another_tenant_is_next() -> None:
    turns = OrderTurns()
    sent = [order for n in range(1000) for order in turns.take(dispatch(n))]
    assert ids(sent) == list(range(MOST_UNTAKEN))
    assert not turns.take(dispatch(1000, "b"))
    taken = list(turns.taken(0))
    assert ids(taken) == [MOST_UNTAKEN], "whose turn it was"
    assert ids(list(turns.taken(1))) == [1000]


def test_a_worker_that_takes_what_it_is_sent_is_sent_all_at_once() -> None:
    turns = OrderTurns()
    for number in range(100):
        assert ids(list(turns.take(dispatch(number)))) == [number]
        turns.taken(number)
    assert len(turns) == 0


@pytest.mark.parametrize("order_for", [CancelStream, handoff, cancel_handoff])
def test_an_order_for_a_request_goes_with_its_dispatch_and_passes_others(
    order_for: Callable[[StreamKey], Order],
) -> None:
    turns = OrderTurns(most=1)
    assert ids(list(turns.take(dispatch(1)))) == [1]
    assert not turns.take(dispatch(2))
    assert not turns.take(dispatch(3))
    assert list(turns.take(order_for(key(1)))) == [order_for(key(1))]
    assert not turns.take(order_for(key(2)))
    assert list(turns.taken(1)) == [dispatch(2), order_for(key(2))]
    assert list(turns.taken(2)) == [dispatch(3)]


def test_a_request_that_is_dispatched_again_keeps_the_order_of_its_orders() -> None:
    """One comes back from elsewhere, behind another tenant's request in its dispatch."""
    turns, first, again = OrderTurns(most=1), dispatch(2), dispatch(4, "b")
    again = replace(again, batches=(*again.batches, *dispatch(2).batches))
    turns.take(dispatch(1, "b"))
    turns.take(dispatch(3, "b"))
    turns.take(first)
    turns.take(CancelStream(key(2)))
    sent = list(turns.take(again))
    assert sent == [dispatch(3, "b"), first, CancelStream(key(2))]
    assert list(turns.flush()) == [again]


def test_what_names_requests_goes_behind_all_that_waits() -> None:
    for order in (Drain(), GiveBack((key(2),))):
        turns = OrderTurns(most=1)
        turns.take(dispatch(1))
        turns.take(dispatch(2))
        turns.take(dispatch(3, "b"))
        assert turns.take(Tuned(0.5)) == (Tuned(0.5),)
        assert list(turns.take(order)) == [dispatch(2), dispatch(3, "b"), order]
        assert len(turns) == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from("abc")),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("taken"), st.integers(0, 30)),
        st.tuples(st.just("drain"), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 4))
def test_every_order_is_sent_once_in_its_tenants_order(
    script: list[tuple[str, object]], most: int
) -> None:
    turns, sent, ordered, way = OrderTurns(most), list[Order](), list[Order](), set[int]()
    num_dispatches = 0
    for what, which in script:
        before = len(sent)
        if what == "take":
            ordered.append(dispatch(num_dispatches, str(which)))
            num_dispatches += 1
            sent += turns.take(ordered[-1])
        elif what == "cancel" and isinstance(which, int) and which < num_dispatches:
            ordered.append(CancelStream(key(which)))
            sent += turns.take(ordered[-1])
        elif what == "taken" and which in way:
            way.discard(which)
            sent += turns.taken(which)
        elif what == "drain":
            ordered.append(Drain())
            sent += turns.take(ordered[-1])
            assert len(turns) == 0
        way |= set(ids(sent[before:]))
        assert what == "drain" or len(way) <= most or not ids(sent[before:])
    sent += turns.flush()
    assert sorted(map(repr, sent)) == sorted(map(repr, ordered))
    for tenant in "abc":
        own = [n for n in ids(sent) if dispatch(n, tenant) in ordered]
        assert all(one < other for one, other in pairwise(own))
    for place, order in enumerate(sent):
        if isinstance(order, CancelStream):
            assert order.key.stream_id in ids(sent[:place])
