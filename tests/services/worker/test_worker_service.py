"""The worker over real gRPC: its control stream, its fencing, and what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from math import prod
from typing import Any

import grpc
import pytest

from headway.errors import HeadwayError
from headway.messages import Dispatch, EndForward, KvHeader, KvPart, UnitBatch
from headway.request import FinishReason
from protos import worker_pb2, worker_pb2_grpc
from services.runtime import wire
from tests.fakes.worker_service import MODEL, Leader, Sink, make_request, send_kv, served, tokens_of

BLOCK = (6, 2, 16, 3, 32)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_blocks": 10}, "the KV pool holds 160 tokens per DP unit; one request of"),
        ({"host_kv_gib": 1e6}, r"host_kv_gib: host memory for KV .* GiB free"),
        ({"host_kv_gib": 1e-6}, "host_kv_gib is 1e-06; it must be 0 .off. or a block for"),
        ({"max_model_len": 10**6}, "max_model_len is 1000000; the model's limit is"),
    ],
)
async def test_memory_that_cannot_be_is_refused_at_the_start(
    store_url: str, cluster: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(HeadwayError, match=named):
        async with served(store_url, cluster, **options):
            pass


async def test_a_prompt_that_was_computed_before_is_not_computed_again(
    worker: worker_pb2_grpc.WorkerStub, sink: tuple[Sink, str]
) -> None:
    leader = Leader(worker, 1)
    await leader.greet()
    outputs = []
    for stream_id in (1, 2):
        request = replace(make_request(sink[1], stream_id), prompt_token_ids=tuple(range(40)))
        await leader.send(Dispatch(stream_id, (UnitBatch(0, (request,)),)))
        async with asyncio.timeout(20):
            outputs.append([(await sink[0].tokens.get())[1:] for _ in range(4)])
    assert sink[0].cached == {2: 32}
    assert outputs[0] == outputs[1]


async def test_a_role_that_there_is_not_is_refused(worker: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await worker.SetRole(worker_pb2.SetRoleRequest(), timeout=5.0)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_are_the_same_where_the_worker_runs_ahead(
    store_url: str, cluster: str, sink: tuple[Sink, str], engine: str
) -> None:
    outputs = []
    for number, runs_ahead in enumerate((False, True)):
        options = {"engine": engine, "async_scheduling": runs_ahead}
        async with served(store_url, cluster, f"w{number}", **options) as (stub, _):
            leader = Leader(stub, 1)
            await leader.greet()
            requests = tuple(
                make_request(sink[1], 10 * number + n, max_tokens=4 + n) for n in range(3)
            )
            await leader.send(Dispatch(1, (UnitBatch(0, requests),)))
            async with asyncio.timeout(20):
                rows = [await sink[0].tokens.get() for _ in range(4 + 5 + 6)]
            outputs.append(sorted((stream_id % 10, *row) for stream_id, *row in rows))
    assert outputs[0] == outputs[1]


async def test_an_older_leader_is_refused_and_a_newer_one_replaces(
    worker: worker_pb2_grpc.WorkerStub,
) -> None:
    first = Leader(worker, 5)
    await first.greet()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await Leader(worker, 4).greet()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "fencing token is 4" in str(refused.value.details())
    await Leader(worker, 6).greet()
    with pytest.raises(grpc.aio.AioRpcError) as replaced:
        await first.hear()
    assert replaced.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_stream_that_does_not_begin_with_a_hello_is_refused(
    worker: worker_pb2_grpc.WorkerStub,
) -> None:
    leader = Leader(worker, 1)
    await leader.send(Dispatch(1, ()))
    with pytest.raises(grpc.aio.AioRpcError, match="ControlHello"):
        await leader.hear()
    await Leader(worker, 1).greet()


def test_the_shell_of_a_worker_needs_no_torch() -> None:
    code = "import sys, services.worker.servicer; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=MODEL.parents[1], check=True, timeout=60)


async def test_an_unreachable_gateway_frees_its_requests_and_is_counted(
    store_url: str, cluster: str
) -> None:
    # 2,000 passes take longer than the worker's patience with a gateway, on any machine.
    async with served(store_url, cluster, least_pass_time=0.005) as (worker, runtime):
        leader = Leader(worker, 1)
        await leader.greet()
        request = make_request("127.0.0.1:1", max_tokens=2000)
        await leader.send(Dispatch(1, (UnitBatch(0, (request,)),)))
        finished: tuple[Any, ...] = ()
        while not finished:
            report = await leader.hear()
            finished = report.finished if isinstance(report, EndForward) else ()
        broken = "headway_worker_broken_token_links_total"
        assert runtime.metrics.get_sample_value(broken) == 1
    assert finished[0].finish_reason is FinishReason.CANCELLED


def packed(message: KvHeader | KvPart) -> worker_pb2.KvChunk:
    chunk: worker_pb2.KvChunk = wire.KV.pack(message, now=time.time())
    return chunk


def kv_header(**changes: Any) -> worker_pb2.KvChunk:
    fields: dict[str, Any] = {
        "request": make_request("127.0.0.1:1"),
        "unit": 0,
        "num_computed_tokens": 4,
        "num_bytes": 10,
        "block_size": 16,
        "dtype": "float32",
        "shape": BLOCK,
    }
    return packed(KvHeader(**{**fields, **changes}))


def kv_round(num_tokens: int) -> tuple[worker_pb2.KvChunk, worker_pb2.KvChunk]:
    """The first round of a move whose tokens all lie in one block."""
    data = worker_pb2.KvChunk(data=bytes(4 * prod(BLOCK)))
    return kv_header(num_computed_tokens=num_tokens, more=True), data


def kv_part(**changes: Any) -> worker_pb2.KvChunk:
    fields: dict[str, Any] = {
        "first_token": 4,
        "num_computed_tokens": 5,
        "output_token_ids": (1,),
        "shape": BLOCK,
        "more": False,
    }
    return packed(KvPart(**{**fields, **changes}))


@pytest.mark.parametrize(
    ("chunks", "named"),
    [
        ((), "header"),
        ((worker_pb2.KvChunk(data=b"x"),), "header"),
        ((kv_header(unit=9),), "unit is 9"),
        ((kv_header(num_computed_tokens=99),), "num_computed_tokens is 99"),
        ((kv_header(dtype="int4"),), "int4"),
        ((kv_header(shape=(1, 2, 16, 1, 1)),), "shape"),
        ((kv_header(), worker_pb2.KvChunk(data=b"short")), "bytes"),
        ((*kv_round(4), kv_part(first_token=3)), "first_token is 3"),
    ],
)
async def test_malformed_kv_is_refused_and_its_blocks_come_free(
    worker: worker_pb2_grpc.WorkerStub, chunks: tuple[worker_pb2.KvChunk, ...], named: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await send_kv(worker, *chunks)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in str(refused.value.details())
    snapshot = await Leader(worker, 1).greet()
    assert snapshot.loads[0].num_free_blocks == 160
    assert snapshot.held == ()


async def test_a_sender_that_falls_silent_holds_its_blocks_for_the_time_of_a_transfer(
    store_url: str, cluster: str
) -> None:
    async def silent() -> AsyncIterator[worker_pb2.KvChunk]:
        yield kv_header()
        await asyncio.Event().wait()

    async with served(store_url, cluster, engine="fake", transfer_timeout=0.1) as (worker, _):
        call: Any = worker.TransferKv
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call(silent(), timeout=60)
        assert ended.value.details() == (
            "the transfer took over 0.1 s: its blocks here are free again"
        )
        assert (await Leader(worker, 1).greet()).held == ()


async def test_a_request_for_a_unit_that_is_not_there_is_refused_and_others_go_on(
    worker: worker_pb2_grpc.WorkerStub, sink: tuple[Sink, str]
) -> None:
    found, address = sink
    leader = Leader(worker, 1)
    await leader.greet()
    lost, good = make_request(address, 2), make_request(address, 1)
    await leader.send(Dispatch(1, (UnitBatch(9, (lost,)), UnitBatch(0, (good,)))))
    assert len(await tokens_of(found, 4)) == 4
    assert found.failures == ["unit is 9; this worker's units are 0 to 0"]
