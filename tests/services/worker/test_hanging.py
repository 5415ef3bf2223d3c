"""Workers that hang: one ends itself, and nobody waits for the other."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from headway.cost.pass_time import Share
from headway.forward_pass import ForwardPass, PassItem
from headway.messages import CancelHandoff, Dispatch, EndForward, Handoff, HandoffResult, UnitBatch
from headway.request import SamplingParams, StreamKey
from protos import worker_pb2, worker_pb2_grpc
from services.worker import engine_thread
from services.worker.engine_thread import EngineThread, PassWatch
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.worker_service import MODEL, Leader, Sink, make_request, served

ROOT = Path(__file__).resolve().parents[3]


class Silent(worker_pb2_grpc.WorkerServicer):
    """A worker that takes KV and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def TransferKv(self, request_iterator: Any, context: Any) -> worker_pb2.KvReceipt:
        self.asked.set()
        await asyncio.sleep(3600)
        return worker_pb2.KvReceipt()


async def test_a_transfer_to_a_worker_that_hangs_ends_when_its_leader_says_so(
    store_url: str, cluster: str, sink: tuple[Sink, str]
) -> None:
    silent, server = Silent(), grpc.aio.server()  # type: ignore[abstract]  # the other calls are nobody's here
    worker_pb2_grpc.add_WorkerServicer_to_server(silent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with served(store_url, cluster, engine="fake", role="prefill") as (stub, _):
        leader, request = Leader(stub, 1), make_request(sink[1])
        await leader.greet()
        await leader.send(Dispatch(1, (UnitBatch(0, (request,)),)))
        while not (isinstance(said := await leader.hear(), EndForward) and said.prefilled):
            pass
        await leader.send(Handoff(request.key, "silent", f"127.0.0.1:{port}", 0, 1))
        async with asyncio.timeout(20):
            await silent.asked.wait()
        await leader.send(CancelHandoff(request.key, "silent"))
        while not isinstance(said := await leader.hear(), HandoffResult):  # long before 30 s
            pass
        assert (said.ok, said.retriable) == (False, True)
        assert "called off" in said.message
    await server.stop(0)


def forward_pass(pass_id: int, num_tokens: int) -> ForwardPass:
    params = SamplingParams(max_tokens=1)
    blocks = tuple(range(1 + num_tokens // 16))
    item = PassItem(
        StreamKey("g", pass_id), (1,) * num_tokens, 0, blocks, True, params, (1,) * num_tokens, ()
    )
    return ForwardPass(pass_id, (item,))


async def test_a_pass_hangs_that_takes_far_longer_than_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, go_on, results = FakeEngine(32), threading.Event(), asyncio.Queue[Any]()
    thread = EngineThread(engine, results.put_nowait)
    run = engine.run

    def wait_and_run(passed: ForwardPass) -> Any:
        go_on.wait(60)
        return run(passed)

    monkeypatch.setattr(engine, "run", wait_and_run)
    thread.start(forward_pass(1, 8))
    await asyncio.sleep(0.05)
    assert thread.overdue(0.001) == 0.0  # nothing is known about the first one
    monkeypatch.setattr(engine_thread, "_FIRST_PASS", 0.01)
    assert thread.overdue(0.001) > 0.0
    assert thread.overdue(60.0) == 0.0
    go_on.set()
    await results.get()
    assert thread.overdue(0.001) == 0.0  # none is under way
    go_on.clear()
    monkeypatch.setattr(thread._passes, "_longest", 0.02)
    thread.start(forward_pass(2, 80))  # ten times the tokens: ten times the patience
    await asyncio.sleep(0.3)
    assert thread.overdue(0.001) == 0.0
    monkeypatch.setattr(thread._passes, "_longest", 0.0002)
    assert thread.overdue(0.001) > 0.0
    go_on.set()
    await results.get()
    thread.close()


def test_what_a_pass_may_take_follows_from_passes_like_it_and_not_from_the_longest() -> None:
    now = 0.0
    watch = PassWatch(lambda: now)
    works = [Share(batch=1 + number % 7, kv_tokens=100) for number in range(64)]
    for work in works:
        with watch.running(work):
            with watch.waiting():
                now += 5.0  # for a mask
                assert watch.overdue(1.0) == 0.0
            watch.took(0.01 * work.batch)
    with watch.running(Share(batch=4, kv_tokens=100)):
        watch.took(4.0)  # one that was held up
    with watch.running(Share(batch=7, kv_tokens=100)):
        now += 0.5
        assert watch.overdue(0.1) == 0.0
        now += 0.6
        assert watch.overdue(0.1) == pytest.approx(1.1)
        assert watch.overdue(2.0) == 0.0


async def test_a_worker_whose_engine_hangs_ends_itself(store_url: str, cluster: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.hanging_worker", "--hang-timeout", "1"),
        *("--store", store_url, "--cluster", cluster, "--model", str(MODEL)),
        *("--log-format", "json", "--num-blocks", "160", "--listen", "127.0.0.1:0"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, stacks = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    events = [json.loads(line)["event"] for line in out.splitlines()]
    assert events[-1] == "forward_pass_hangs"
    assert process.returncode == 1
    assert b"in hang" in stacks


async def test_a_pass_takes_its_least_time_unless_nothing_runs_in_it() -> None:
    engine, results = FakeEngine(32), asyncio.Queue[Any]()
    thread = EngineThread(engine, results.put_nowait, least_pass_time=0.05)
    thread.start(forward_pass(1, 8))
    assert (await results.get()).pass_time == 0.05
    thread.start(ForwardPass(2, ()))
    assert (await results.get()).pass_time == 1e-3  # the fake's own
    thread.close()
