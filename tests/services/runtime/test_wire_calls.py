"""Calls whose channel is closed while they wait, and calls that are cancelled themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from headway.errors import Code, HeadwayError
from protos import scheduler_pb2_grpc
from services.runtime import wire

PATIENCE = 60.0


class SilentScheduler(scheduler_pb2_grpc.SchedulerServicer):
    """It takes questions, and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Picture(self, request: Any, context: Any) -> Any:
        self.asked.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[SilentScheduler, grpc.aio.Channel]]:
    server = grpc.aio.server()
    scheduler = SilentScheduler()  # type: ignore[abstract]  # of three calls, one is made
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield scheduler, channel
    finally:
        await server.stop(0)


async def test_a_channel_that_is_closed_under_a_call_does_not_cancel_who_waits() -> None:
    async with silent() as (scheduler, channel), asyncio.timeout(PATIENCE):
        waiting = asyncio.create_task(wire.picture(channel, within=PATIENCE))
        await scheduler.asked.wait()
        await channel.close()
        with pytest.raises(HeadwayError) as failure:
            await waiting
    assert failure.value.code is Code.UNAVAILABLE


async def test_who_waits_is_cancelled_on_request() -> None:
    async with silent() as (scheduler, channel), asyncio.timeout(PATIENCE):
        waiting = asyncio.create_task(wire.picture(channel, within=PATIENCE))
        await scheduler.asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
