"""Workers with a real model that drain or change their role under load: no token is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest

from headway.cluster import Role
from headway.request import Request
from protos import common_pb2, worker_pb2, worker_pb2_grpc
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.worker.servicer import WorkerServicer
from tests.fakes.live_rig import LEASE, Sink, live_worker, long_request, token_sink
from tests.fakes.scheduler_rig import PlainGateway, Rig, until

NUM_TOKENS = 400
STREAMS = (1, 2, 3, 4, 5)
PATIENCE = 300.0


async def undisturbed(
    gateway: PlainGateway, sink: Sink, address: str, first_id: int
) -> dict[int, list[int]]:
    """What the same prompts are answered with where nothing moves."""
    for number in STREAMS:
        request = long_request(number, address, NUM_TOKENS)
        await gateway.write(_renamed(request, first_id + number))
    await ended(sink, [first_id + number for number in STREAMS])
    return {number: sink.text(first_id + number) for number in STREAMS}


def _renamed(request: Request, stream_id: int) -> Request:
    return replace(request, stream_id=stream_id, request_id=f"r{stream_id}")


async def ended(sink: Sink, stream_ids: list[int]) -> None:
    async with asyncio.timeout(PATIENCE):
        while any(len(sink.tokens[n]) < NUM_TOKENS for n in stream_ids):
            await asyncio.sleep(0.02)
    for stream_id in stream_ids:
        assert sorted(sink.indices[stream_id]) == list(range(NUM_TOKENS))


async def all_begun(sink: Sink) -> None:
    await until(lambda: all(len(sink.tokens[n]) > 3 for n in STREAMS), "all of them decode")


@pytest.mark.timeout(900)
async def test_a_worker_that_drains_gives_up_its_requests_while_they_run(rig: Rig) -> None:
    leader = await rig.leader(leader_ttl=LEASE)
    gateway = await rig.gateway(leader.address)
    async with AsyncExitStack() as stack:
        sink, address = await stack.enter_async_context(token_sink(rig))
        first: WorkerServicer = await stack.enter_async_context(live_worker(rig, "a"))
        expected = await undisturbed(gateway, sink, address, 100)
        for number in STREAMS:
            await gateway.write(long_request(number, address, NUM_TOKENS))
        await all_begun(sink)
        await stack.enter_async_context(live_worker(rig, "b"))
        draining = asyncio.create_task(first.drain())
        async with asyncio.timeout(PATIENCE):
            while first._service is None or first._service._core.num_held:
                await asyncio.sleep(0.005)
        unfinished = [n for n in STREAMS if len(sink.tokens[n]) < NUM_TOKENS]
        async with asyncio.timeout(PATIENCE):
            await draining  # a moment later: its gateway may hear late where they are
        assert unfinished, "it did not wait for them"
        await ended(sink, list(STREAMS))
    assert {number: sink.text(number) for number in STREAMS} == expected
    moved = [number for number in STREAMS if list(sink.senders[number]) == ["a", "b"]]
    assert set(unfinished) <= set(moved)


@pytest.mark.timeout(900)
async def test_a_decoder_that_becomes_a_prefiller_gives_up_its_requests(rig: Rig) -> None:
    leader = await rig.leader(leader_ttl=LEASE)
    gateway = await rig.gateway(leader.address)
    async with AsyncExitStack() as stack:
        sink, address = await stack.enter_async_context(token_sink(rig))
        await stack.enter_async_context(live_worker(rig, "p", "prefill"))
        await stack.enter_async_context(live_worker(rig, "d", "decode"))
        expected = await undisturbed(gateway, sink, address, 100)
        for number in STREAMS:
            await gateway.write(long_request(number, address, NUM_TOKENS))
        await all_begun(sink)
        await stack.enter_async_context(live_worker(rig, "e", "decode"))
        member = next(m for m in await rig.store.members("worker") if m.member_id == "d")
        await set_role(rig, member.address, Role.PREFILL)
        await ended(sink, list(STREAMS))
        await gateway.write(long_request(6, address, NUM_TOKENS))
        await until(lambda: len(sink.tokens[6]) > 3, "and the cluster serves on")
        assert "d" not in list(sink.senders[6])[1:]
    assert {number: sink.text(number) for number in STREAMS} == expected
    assert any(list(sink.senders[number])[-2:] == ["d", "e"] for number in STREAMS)


async def set_role(rig: Rig, address: str, role: Role) -> None:
    async with open_channel(address, ServiceConfig(**rig.config), ServiceRole.WORKER) as channel:
        packed = common_pb2.Role.Value(f"ROLE_{role.name}")
        stub = worker_pb2_grpc.WorkerStub(channel)
        await stub.SetRole(worker_pb2.SetRoleRequest(role=packed), timeout=5.0)


@pytest.mark.timeout(900)
async def test_a_role_that_there_is_not_is_refused(rig: Rig) -> None:
    async with live_worker(rig, "a"):
        (member,) = await rig.store.members("worker")
        async with open_channel(
            member.address, ServiceConfig(**rig.config), ServiceRole.WORKER
        ) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.SetRole(worker_pb2.SetRoleRequest(), timeout=5.0)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
