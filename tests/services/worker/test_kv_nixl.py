"""KV by NIXL: what falls back to gRPC, and transfers whose other end dies."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from headway.engine import KvMemory
from headway.errors import Code, HeadwayError
from headway.messages import Dispatch, Handoff, HandoffResult, KvHeader, KvSource, UnitBatch
from protos import worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.worker import kv_nixl
from services.worker.config import WorkerConfig
from services.worker.kv_nixl import NixlKv, open_nixl
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.worker_service import Leader, Sink, make_request, needs_nixl, send_kv, served

TAKEN = "headway_worker_kv_transfer_bytes_total"


class Blocks(FakeEngine):
    """KV of several planes in one piece of memory, without an engine."""

    def __init__(self, value: int, num_blocks: int = 8) -> None:
        super().__init__(num_blocks)
        self.planes = np.full((3, num_blocks, 1 << 20), value, np.uint8)

    def kv_memory(self, *, is_host: bool) -> KvMemory | None:
        planes, blocks, size = self.planes.shape
        if is_host:
            return None
        base = self.planes.ctypes.data
        return KvMemory(base, self.planes.nbytes, planes, blocks * size, size, size)


async def offered(kv: NixlKv, blocks: list[int]) -> KvSource:
    async with asyncio.timeout(60):
        return await kv.offer(blocks, from_host=False)


@needs_nixl
async def test_blocks_arrive_in_the_blocks_they_are_for() -> None:
    here, there = Blocks(1), Blocks(0)
    here.planes[:] = np.arange(24, dtype=np.uint8).reshape(3, 8, 1)
    source, target = NixlKv(here, "a", on_loopback=True), NixlKv(there, "b", on_loopback=True)
    offer = await offered(source, [6, 1, 2, 3])
    read = asyncio.create_task(source.read_of(offer.notice))
    async with asyncio.timeout(60):
        await target.read(offer, [0, 5, 6, 7], to_host=False)
        await read
    assert there.planes[:, :, 0].tolist() == [
        [8 * plane + block if block else 0 for block in (6, 0, 0, 0, 0, 1, 2, 3)]
        for plane in range(3)
    ]
    for each in (replace(offer, block_bytes=7), replace(offer, base=4096)):
        with pytest.raises(HeadwayError, match="no KV by NIXL") as refused:
            await target.read(each, [0, 5, 6, 7], to_host=False)
        assert refused.value.code is Code.FAILED_PRECONDITION
    await source.close()
    await target.close()


def kv_header(engine: FakeEngine) -> KvHeader:
    info, request = engine.info, make_request("127.0.0.1:1")
    shape = engine.kv_shape(1)
    return KvHeader(request, 0, 4, 4 * prod(shape), info.block_size, info.dtype, shape)


def _offer_forever(pipe: Any, num_blocks: int) -> None:
    async def offer() -> None:
        kv = NixlKv(Blocks(1, num_blocks), "source", on_loopback=True)
        pipe.send(await kv.offer(range(num_blocks), from_host=False))
        await asyncio.sleep(3600)

    asyncio.run(offer())


@contextmanager
def _offering(num_blocks: int) -> Iterator[tuple[BaseProcess, Any]]:
    """A process that offers its blocks, and the pipe with its offer."""
    ours, theirs = multiprocessing.Pipe()
    spawned = multiprocessing.get_context("spawn")
    process = spawned.Process(target=_offer_forever, args=(theirs, num_blocks))
    process.start()
    try:
        yield process, ours
    finally:
        process.kill()


@needs_nixl
async def test_a_sender_that_is_killed_mid_read_ends_the_read() -> None:
    kv = NixlKv(Blocks(0, num_blocks=32), "target", on_loopback=True)
    with _offering(32) as (process, pipe):
        async with asyncio.timeout(300):
            offer = await asyncio.to_thread(pipe.recv)
            reading = asyncio.create_task(kv.read(offer, range(32), to_host=False))
            while not kv._senders:
                await asyncio.sleep(0.001)
            process.kill()
            await asyncio.wait([reading])  # it may have been quicker
            process.join()
            with pytest.raises(HeadwayError, match="cannot be read"):
                await kv.read(offer, range(32), to_host=False)
    await kv.close()


@needs_nixl
async def test_a_sender_that_hangs_holds_up_no_reads_but_its_own_and_no_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")  # memory that is shared is read without the sender
    own = Blocks(0)
    kv, other = (NixlKv(each, "t", on_loopback=True) for each in (own, Blocks(5)))
    with _offering(2) as (process, pipe):
        async with asyncio.timeout(300):
            offer = await asyncio.to_thread(pipe.recv)
            await kv.read(offer, [0, 1], to_host=False)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            reads = [asyncio.create_task(kv.read(offer, [0, 1], to_host=False)) for _ in "1234"]
            await asyncio.sleep(0)
            with pytest.raises(HeadwayError, match="4 reads of this sender have not ended"):
                await kv.read(offer, [0, 1], to_host=False)
            await kv.read(await offered(other, [1]), [2], to_host=False)
            await kv.close()
            ends = await asyncio.gather(*reads, return_exceptions=True)
            assert ["this worker stops" in str(end) for end in ends] == [True] * 4
            assert not kv_nixl._kept
            own.planes[:] = 77
            os.kill(process.pid, signal.SIGCONT)
            await asyncio.to_thread(process.join, 1.0)
            assert np.all(own.planes == 77)
    await other.close()


@needs_nixl
async def test_senders_that_nobody_reads_are_forgotten_for_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_nixl, "_MOST_SENDERS", 1)
    own = Blocks(0)
    target, *sources = (NixlKv(each, "w", on_loopback=True) for each in (own, Blocks(1), Blocks(2)))
    offers = [await offered(each, [0]) for each in sources]
    for number in (0, 1, 0):
        await target.read(offers[number], [0], to_host=False)
        assert list(target._senders) == [offers[number].agent]
        assert np.all(own.planes[:, 0] == number + 1)
    for each in (target, *sources):
        await each.close()


class Stuck:
    """A process's end of NIXL in which reads begin, and end when they are told to."""

    def __init__(self, kv: NixlKv) -> None:
        self._agent, kv._agent = kv._agent, self
        self.begun, self.ends = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def transfer(self, handle: Any) -> Any:
        self.begun.set()
        self.ends.wait()
        return self._agent.transfer(handle)


@needs_nixl
async def test_a_read_that_does_not_end_keeps_its_memory_when_the_worker_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_nixl, "_LONGEST_CLOSE", 0.1)
    source, kv = (NixlKv(Blocks(value), f"{value}", on_loopback=True) for value in (1, 0))
    offer = await offered(source, [0])
    await kv.opened()
    stuck = Stuck(kv)
    reading = asyncio.create_task(kv.read(offer, [0], to_host=False))
    await asyncio.to_thread(stuck.begun.wait)
    await kv.close()
    assert kv_nixl._kept == [kv]
    assert kv._agent is stuck
    kv_nixl._kept.clear()
    stuck.ends.set()
    with pytest.raises(HeadwayError, match="this worker stops"):
        await reading
    await source.close()


@needs_nixl
async def test_of_two_processes_with_one_name_neither_breaks_the_others_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = NixlKv(Blocks(0), "t", on_loopback=True)
    await target.opened()
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    first, second = (NixlKv(Blocks(value), "w", on_loopback=True) for value in (1, 2))
    one, two = [await offered(each, [0]) for each in (first, second)]
    async with asyncio.timeout(60):
        stuck = Stuck(target)
        reading = asyncio.create_task(target.read(one, [0], to_host=False))
        await asyncio.to_thread(stuck.begun.wait)
        with pytest.raises(HeadwayError, match="has its agent name, w-0") as refused:
            await target.read(two, [1], to_host=False)
        assert refused.value.code is Code.FAILED_PRECONDITION
        stuck.ends.set()
        await reading
        for offer in (two, one):
            await target.read(offer, [1], to_host=False)
        for each, offer in ((first, one), (second, two)):
            await each.read_of(offer.notice)
    del stuck
    for each in (target, first, second):
        await each.close()
    assert not kv_nixl._kept


class Broken(worker_pb2_grpc.WorkerServicer):
    """A worker that breaks off as soon as it is to read."""

    num_sources = 0

    async def TransferKv(self, request_iterator: Any, context: Any) -> worker_pb2.KvReceipt:
        async for chunk in request_iterator:
            if chunk.WhichOneof("body") == "source":
                self.num_sources += 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
        return worker_pb2.KvReceipt()


async def _dispatch(stub: Any, address: str) -> Leader:
    leader = Leader(stub, 1)
    await leader.greet()
    request = make_request(address, max_tokens=120)
    await leader.send(Dispatch(1, (UnitBatch(0, (request,)),)))
    return leader


async def _handed_off(leader: Leader) -> HandoffResult:
    while not isinstance(said := await leader.hear(), HandoffResult):
        pass
    return said


async def _rest(found: Sink, num_tokens: int) -> list[int]:
    async with asyncio.timeout(60):
        return [(await found.tokens.get())[1] for _ in range(num_tokens)]


@needs_nixl
async def test_a_request_whose_target_dies_mid_read_goes_on_where_it_is(
    store_url: str, cluster: str, sink: tuple[Sink, str]
) -> None:
    (found, address), server = sink, grpc.aio.server()
    broken = Broken()  # type: ignore[abstract]  # the other calls are nobody's here
    worker_pb2_grpc.add_WorkerServicer_to_server(broken, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with served(store_url, cluster, engine="fake", kv_transport="nixl") as (stub, _):
        leader = await _dispatch(stub, address)
        indices = await _rest(found, 5)
        await leader.send(Handoff(make_request(address).key, "b", f"127.0.0.1:{port}", 0, 1))
        result = await _handed_off(leader)
        indices += await _rest(found, 115)
        snapshot = await Leader(stub, 2).greet()
    await server.stop(0)
    assert (result.ok, result.retriable, broken.num_sources > 0) == (False, True, True)
    assert indices == list(range(120))
    assert snapshot.loads[0].num_free_blocks == 160


@needs_nixl
async def test_a_target_without_nixl_is_sent_the_bytes(
    store_url: str, cluster: str, sink: tuple[Sink, str]
) -> None:
    found, address = sink
    async with (
        served(store_url, cluster, "a", engine="fake", kv_transport="auto") as (stub, runtime),
        served(store_url, cluster, "b", engine="fake") as (target, other),
    ):
        await Leader(target, 1).greet()
        leader = await _dispatch(stub, address)
        await _rest(found, 5)
        await leader.send(Handoff(make_request(address).key, "b", other.address, 0, 1))
        result = await _handed_off(leader)
        await _rest(found, 115)
        sent = [runtime.metrics.get_sample_value(TAKEN, {"by": by}) for by in ("grpc", "nixl")]
    assert result.ok
    assert sent[0]
    assert not sent[1]


@needs_nixl
async def test_what_was_read_counts_only_with_the_senders_word(
    store_url: str, cluster: str
) -> None:
    engine = FakeEngine(8)
    source = NixlKv(engine, "a", on_loopback=True)
    async with served(store_url, cluster, engine="fake", kv_transport="nixl") as (stub, _):
        offer = await offered(source, [0])
        header = wire.KV.pack(kv_header(engine), now=0.0)
        chunks = [header, wire.KV.pack(offer, now=0.0)]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_kv(stub, *chunks)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with asyncio.timeout(60):
            await source.read_of(offer.notice)  # it was read
        assert (await Leader(stub, 1).greet()).loads[0].num_free_blocks == 160
    await source.close()


class _Agent:
    def __init__(self, *_: object) -> None:
        pass

    def register_memory(self, *_: object) -> None:
        pass

    def get_agent_metadata(self) -> bytes:
        return b"description"


async def test_a_worker_that_stops_offers_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(
        nixl_agent=_Agent,
        nixl_agent_config=lambda **_: None,
        nixl_thread_sync_t=SimpleNamespace(NIXL_THREAD_SYNC_STRICT=None),
    )
    monkeypatch.setattr(kv_nixl, "_import", lambda: api)
    kv = NixlKv(Blocks(1), "a", on_loopback=True)
    await kv.close()
    with pytest.raises(HeadwayError, match="this worker stops"):
        await kv.offer([1], from_host=False)


def test_it_is_refused_beside_certificates(tmp_path: Path) -> None:
    files: dict[str, Any] = {f"tls_{name}": tmp_path / name for name in ("cert", "key", "ca")}
    kv = FakeEngine(8)
    assert open_nixl(WorkerConfig(kv_transport="grpc"), kv) is None
    assert open_nixl(WorkerConfig(kv_transport="auto", **files), kv) is None
    with pytest.raises(HeadwayError, match="encrypts nothing"):
        open_nixl(WorkerConfig(kv_transport="nixl", **files), kv)
