"""The contract that every engine meets, over real gRPC: a worker does the same with each.

vLLM is loaded where it is installed: ``make test-vllm``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headway.cluster import TOKEN_LAYOUT
from headway.errors import Code
from headway.messages import (
    Accepted,
    CancelStream,
    Dispatch,
    EndForward,
    GiveBack,
    HandedBack,
    Snapshot,
    UnitBatch,
)
from headway.request import FinishReason, Request
from protos import worker_pb2_grpc
from services.runtime.channel import open_channel
from services.runtime.identity.roles import ServiceRole
from services.worker.servicer import WorkerServicer
from tests.fakes.every_engine import EngineUnderTest, engine_under_test
from tests.fakes.paged import expected_output
from tests.fakes.worker_service import Leader, Sink, make_request, process

PATIENCE = 60.0
OWN = ("fake", "torch", "openai")
OF_VLLM = ("vllm", "vllm-native")

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(
    scope="module", params=[*OWN, *(pytest.param(each, marks=pytest.mark.vllm) for each in OF_VLLM)]
)
def tested(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    if request.param in OF_VLLM:
        pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")
    with engine_under_test(request.param) as found:
        yield found


@dataclass
class Worker:
    """A worker that computes with the engine, its leader, and what its gateway is sent."""

    servicer: WorkerServicer
    stub: Any
    leader: Leader
    snapshot: Snapshot
    sink: Sink
    address: str

    def request(self, stream_id: int = 1, *, max_tokens: int = 4, **sampling: Any) -> Request:
        found = make_request(self.address, stream_id, max_tokens=max_tokens)
        return replace(found, sampling=replace(found.sampling, **sampling))

    async def dispatch(self, number: int, *requests: Request) -> None:
        await self.leader.send(Dispatch(number, (UnitBatch(0, requests),)))

    async def report(self) -> EndForward:
        """The next end of a pass."""
        while not isinstance(said := await self.leader.hear(), EndForward):
            pass
        return said

    async def finished(self) -> Sequence[Any]:
        """The next requests that have ended."""
        while not (report := await self.report()).finished:
            pass
        return report.finished

    async def rows(self, count: int) -> list[tuple[int, int, int]]:
        """The next tokens: stream, place, token."""
        async with asyncio.timeout(PATIENCE):
            return [await self.sink.tokens.get() for _ in range(count)]

    async def served(self, number: int, *requests: Request) -> dict[int, list[int]]:
        """Return the tokens of these requests, each to its greatest length."""
        wanted = sum(r.sampling.max_tokens - len(r.output_token_ids) for r in requests)
        await self.dispatch(number, *requests)
        found: dict[int, list[int]] = {}
        places = {r.stream_id: len(r.output_token_ids) for r in requests}
        for stream_id, place, token in await self.rows(wanted):
            own = found.setdefault(stream_id, [])
            assert place == places[stream_id] + len(own)
            own.append(token)
        return found


@asynccontextmanager
async def working(
    tested: EngineUnderTest, store_url: str, cluster: str, sink: tuple[Sink, str], **options: Any
) -> AsyncIterator[Worker]:
    given = {**tested.options, **options}
    async with (
        process(store_url, cluster, load=tested.load, **given) as (servicer, runtime),
        open_channel(runtime.address, runtime.config, ServiceRole.WORKER) as channel,
    ):
        stub = worker_pb2_grpc.WorkerStub(channel)
        leader = Leader(stub, 1)
        yield Worker(servicer, stub, leader, await leader.greet(), *sink)


@pytest.fixture
async def worker(
    tested: EngineUnderTest, store_url: str, cluster: str, sink: tuple[Sink, str]
) -> AsyncIterator[Worker]:
    async with working(tested, store_url, cluster, sink) as found:
        yield found


async def test_a_dispatch_is_accepted_computed_and_reported(
    worker: Worker, tested: EngineUnderTest
) -> None:
    info = worker.snapshot.info
    assert (info.worker_id, info.num_blocks) == ("w", tested.num_blocks)
    assert info.kv_layout == (TOKEN_LAYOUT if tested.moves_kv else "")
    request = worker.request(max_tokens=5)
    await worker.dispatch(7, request)
    assert await worker.leader.hear() == Accepted(7)
    reports = [await worker.report()]
    while not reports[-1].finished:
        reports.append(await worker.report())
    assert [r.dispatch_ids for r in reports if r.dispatch_ids] == [(7,)]
    if tested.endpoint is None:  # its passes are known, and this one ran in the first
        assert reports[0].dispatch_ids == (7,)
        assert reports[0].pass_time > 0
    assert reports[-1].finished[0].finish_reason is FinishReason.LENGTH
    rows = await worker.rows(5)
    assert [row[:2] for row in rows] == [(1, n) for n in range(5)]
    if tested.name in ("fake", "openai"):
        assert [row[2] for row in rows] == expected_output(request.prompt_token_ids, 5)


async def test_a_repeated_dispatch_is_acknowledged_and_computed_once(worker: Worker) -> None:
    first, second = worker.request(1), worker.request(2)
    for _ in range(2):
        await worker.dispatch(1, first)
    accepted = [said for _ in range(3) if isinstance(said := await worker.leader.hear(), Accepted)]
    assert Accepted(1) in accepted
    assert [row[:2] for row in await worker.rows(4)] == [(1, n) for n in range(4)]
    assert [*(await worker.served(2, second))] == [2]
    assert worker.sink.tokens.empty()


async def test_requests_say_the_same_alone_and_beside_others(worker: Worker) -> None:
    alone = await worker.served(1, worker.request(1, max_tokens=12))
    others = (worker.request(n, max_tokens=6 + n) for n in (3, 4, 5))
    beside = await worker.served(2, worker.request(2, max_tokens=12), *others)
    assert beside[2] == alone[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_resubmitted_request_goes_on_after_its_tokens(
    worker: Worker, tested: EngineUnderTest, temperature: float
) -> None:
    if temperature and tested.endpoint is not None:
        pytest.skip("such an endpoint goes on with other draws (docs/engines.md)")
    sampling: dict[str, Any] = {"max_tokens": 12, "temperature": temperature, "seed": 3}
    whole = (await worker.served(1, worker.request(1, **sampling)))[1]
    rest = replace(worker.request(2, **sampling), output_token_ids=tuple(whole[:5]))
    assert (await worker.served(2, rest))[2] == whole[5:]


async def test_tokens_that_an_endpoint_sends_together_arrive_each_at_its_place(
    worker: Worker, tested: EngineUnderTest
) -> None:
    if tested.endpoint is None:
        pytest.skip("a pass draws one token of a request")
    tested.endpoint.at_a_time = 3
    request = worker.request(max_tokens=8)
    found = await worker.served(1, request)
    tested.endpoint.at_a_time = 1
    assert found[1] == expected_output(request.prompt_token_ids, 8)


async def test_a_cancelled_request_ends_and_its_blocks_come_free(
    worker: Worker, tested: EngineUnderTest
) -> None:
    request = worker.request(max_tokens=2000)
    await worker.dispatch(1, request)
    await worker.rows(1)
    tested.holds()
    await worker.leader.send(CancelStream(request.key))
    (ended,) = await worker.finished()
    if tested.endpoint is not None:
        tested.endpoint.goes_on.set()
    assert ended.finish_reason is FinishReason.CANCELLED
    snapshot = await Leader(worker.stub, 2).greet()
    assert (snapshot.held, snapshot.loads[0].num_free_blocks) == ((), tested.num_blocks)


async def test_a_worker_that_drains_finishes_what_it_holds(worker: Worker) -> None:
    await worker.dispatch(1, worker.request(max_tokens=200))
    rows = await worker.rows(1)
    await worker.servicer.drain()
    rows += await worker.rows(199)
    assert [place for _, place, _ in rows] == list(range(200))


async def test_a_request_ends_at_the_longest_context(
    tested: EngineUnderTest, store_url: str, cluster: str, sink: tuple[Sink, str]
) -> None:
    async with working(tested, store_url, cluster, sink, max_model_len=20) as worker:
        request = worker.request(max_tokens=2000)
        await worker.dispatch(1, request)
        (ended,) = await worker.finished()
    assert ended.finish_reason is FinishReason.LENGTH
    assert ended.num_output_tokens == 20 - len(request.prompt_token_ids)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": "another"}, "model is 'another'"),
        ({"prompt_token_ids": (65,) * 5000}, "the request has 5000 tokens"),
    ],
)
async def test_what_no_pass_could_serve_is_refused_by_name(
    worker: Worker, changed: dict[str, Any], named: str
) -> None:
    wrong = replace(worker.request(1), **changed)
    await worker.dispatch(1, wrong)
    (ended,) = await worker.finished()
    assert (ended.key, ended.finish_reason) == (wrong.key, FinishReason.ERROR)
    async with asyncio.timeout(PATIENCE):
        while not worker.sink.failures:
            await asyncio.sleep(0.01)
    assert named in worker.sink.failures[0]
    assert [*(await worker.served(2, worker.request(2)))] == [2]


async def test_log_probabilities_of_a_prompt_are_refused_at_once_by_engines_inside_vllm(
    worker: Worker, tested: EngineUnderTest
) -> None:
    if tested.name in OWN:
        pytest.skip("torch and openai have them, and the fake has no probabilities")
    wrong = worker.request(1, num_prompt_logprobs=1)
    await worker.dispatch(1, wrong)
    (ended,) = await worker.finished()
    assert (ended.key, ended.finish_reason) == (wrong.key, FinishReason.ERROR)
    async with asyncio.timeout(PATIENCE):
        while not worker.sink.failures:
            await asyncio.sleep(0.01)
    assert worker.sink.failures[0].startswith("log probabilities of a prompt")
    assert worker.sink.codes == [Code.INVALID_ARGUMENT]
    assert [*(await worker.served(2, worker.request(2)))] == [2]


async def test_a_request_that_is_given_back_is_not_served_and_any_other_is(worker: Worker) -> None:
    requests = [worker.request(number, max_tokens=30) for number in range(1, 9)]
    await worker.dispatch(1, *requests)
    await worker.leader.send(GiveBack(tuple(request.key for request in requests)))
    while not isinstance(said := await worker.leader.hear(), HandedBack):
        pass
    kept = {request.stream_id for request in requests if request.key not in said.keys}
    rows = await worker.rows(30 * len(kept))
    assert {stream_id for stream_id, _, _ in rows} == kept
    again = replace(worker.request(9), sampling=requests[0].sampling)
    assert [*(await worker.served(2, again))] == [9]
