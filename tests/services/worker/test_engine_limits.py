"""The limits of an engine bind its worker, over real gRPC."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from headway.forward_pass import ForwardPass, PassResult
from headway.messages import Dispatch, EndForward, UnitBatch
from services.worker.config import WorkerConfig
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.worker_service import Leader, Sink, make_request, served


class NarrowEngine(FakeEngine):
    """An engine that takes two requests in a pass."""

    def __init__(self) -> None:
        super().__init__(num_blocks=160)
        self.info = replace(self.info, max_running=2)
        self.widest = 0

    def run(self, forward_pass: ForwardPass) -> PassResult:
        self.widest = max(self.widest, len(forward_pass.items))
        return super().run(forward_pass)


@pytest.mark.parametrize(("configured", "widest"), [(0, 2), (5, 2), (1, 1)])
async def test_a_pass_has_no_more_requests_than_the_engine_takes(
    store_url: str, cluster: str, sink: tuple[Sink, str], configured: int, widest: int
) -> None:
    engine = NarrowEngine()

    def load(_: WorkerConfig) -> NarrowEngine:
        return engine

    async with served(store_url, cluster, load=load, max_running=configured) as (stub, _):
        leader = Leader(stub, 1)
        await leader.greet()
        requests = tuple(make_request(sink[1], number, max_tokens=4) for number in range(1, 7))
        await leader.send(Dispatch(1, (UnitBatch(0, requests),)))
        ended = 0
        async with asyncio.timeout(120):
            while ended < len(requests):
                said = await leader.hear()
                ended += len(said.finished) if isinstance(said, EndForward) else 0
    assert engine.widest == widest
