"""Whose orders a worker obeys while one leader follows another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from headway.core.worker.events import LeaderConnected
from headway.errors import Code, HeadwayError
from headway.messages import Accepted, CancelStream, ControlHello, Order
from headway.request import StreamKey
from protos import worker_pb2
from services.runtime import wire
from services.worker.control import ControlSession


class Leader:
    """One leader's stream; it reads no report unless it is told to."""

    def __init__(self, session: ControlSession, token: int, worker_id: str = "") -> None:
        self._orders: asyncio.Queue[ControlHello | CancelStream] = asyncio.Queue()
        self.send(ControlHello(f"leader-{token}", token, worker_id=worker_id))
        self.reports = aiter(session.serve(self._stream()))

    def send(self, order: ControlHello | CancelStream) -> None:
        self._orders.put_nowait(order)

    async def _stream(self) -> AsyncIterator[worker_pb2.SchedulerToWorker]:
        while True:
            yield wire.TO_WORKER.pack(await self._orders.get(), now=time.time())


async def until(orders: list[LeaderConnected | Order], num: int) -> None:
    async with asyncio.timeout(60):
        while len(orders) < num:
            await asyncio.sleep(0)


async def test_an_order_that_comes_after_a_newer_leaders_hello_is_not_obeyed() -> None:
    obeyed: list[LeaderConnected | Order] = []

    def post(order: LeaderConnected | Order) -> None:
        obeyed.append(order)
        if isinstance(order, LeaderConnected):
            session.report(Accepted(1))  # as the core would send its snapshot

    session = ControlSession(post, time.time)
    older, newer = Leader(session, 1), Leader(session, 2)
    await anext(older.reports)
    older.send(CancelStream(StreamKey("g", 1)))
    await until(obeyed, 2)
    await anext(newer.reports)
    older.send(CancelStream(StreamKey("g", 2)))  # the older stream has not been ended yet
    for _ in range(10):
        await asyncio.sleep(0)
    newer.send(CancelStream(StreamKey("g", 3)))
    await until(obeyed, 4)
    stopped = [order.key.stream_id for order in obeyed if isinstance(order, CancelStream)]
    assert stopped == [1, 3]


@pytest.mark.parametrize(("token", "code"), [(1, Code.UNAVAILABLE), (2, Code.FAILED_PRECONDITION)])
async def test_a_replaced_stream_ends_as_superseded_only_if_the_leader_is_newer(
    token: int, code: Code
) -> None:
    obeyed: list[LeaderConnected | Order] = []
    session = ControlSession(obeyed.append, time.time)
    older = asyncio.ensure_future(anext(Leader(session, 1).reports))
    await until(obeyed, 1)
    newer = asyncio.ensure_future(anext(Leader(session, token).reports))
    with pytest.raises(HeadwayError) as refused:
        await older
    assert refused.value.code is code
    newer.cancel()


async def test_a_leader_that_means_the_worker_before_disturbs_nothing() -> None:
    obeyed: list[LeaderConnected | Order] = []
    session = ControlSession(obeyed.append, time.time, worker_id="w.2")
    leader = Leader(session, 1, "w.2")
    reading = asyncio.ensure_future(anext(leader.reports))
    await until(obeyed, 1)
    with pytest.raises(HeadwayError, match=r"this is worker w\.2, not w\.1"):
        await anext(Leader(session, 1, "w.1").reports)
    leader.send(CancelStream(StreamKey("g", 1)))
    await until(obeyed, 2)
    assert not reading.done()
    reading.cancel()


@pytest.mark.parametrize(
    "token",
    [2**64 - 1, 2**53, int(1e6 * time.time()) + 2 * 86_400_000_000],
    ids=["the largest", "53 bits", "two days ahead"],
)
async def test_a_token_that_no_store_gives_out_does_not_shut_out_the_next_leader(
    token: int,
) -> None:
    obeyed: list[LeaderConnected | Order] = []
    session = ControlSession(obeyed.append, time.time)
    with pytest.raises(HeadwayError, match="compare the clocks"):
        await anext(Leader(session, token).reports)
    assert obeyed == []
    ahead = Leader(session, int(1e6 * time.time()) + 600_000_000)  # clocks differ by minutes
    reading = asyncio.ensure_future(anext(ahead.reports))
    await until(obeyed, 1)
    reading.cancel()
