"""From a real model's hidden states to the scheduler's reports, by way of a real predictor."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from headway.messages import (
    ControlHello,
    Dispatch,
    EndForward,
    LoadReport,
    UnitBatch,
    WantedReports,
)
from protos import worker_pb2_grpc
from services.predictor.config import PredictorConfig
from tests.fakes.predictor_rig import constant_predictor, serving
from tests.fakes.worker_service import Leader, Sink, make_request

WIDTH = 192
WANTS = WantedReports(load_interval=0.0, lengths=True)


@pytest.fixture
async def predictor(store_url: str, cluster: str, tmp_path: Path) -> AsyncIterator[None]:
    """It says 500 tokens of whatever it is shown."""
    constant_predictor(tmp_path, 500.0, width=WIDTH)
    config = PredictorConfig(
        service_id="p", store=store_url, cluster=cluster, predictors={"headway-mini": tmp_path}
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(config, joins=True))
        yield


async def told(worker: worker_pb2_grpc.WorkerStub, address: str, *, reads: bool) -> list[float]:
    """Remaining lengths in reports to a leader that ``reads`` them, or does not."""
    leader = Leader(worker, 1)
    await leader.send(ControlHello("scheduler-1", 1, replace(WANTS, lengths=reads)))
    request = make_request(address, max_tokens=1900 if reads else 200)
    if reads:
        request = replace(request, predicted_output_tokens=60.0)
    await leader.send(Dispatch(7, (UnitBatch(0, (request,)),)))
    seen: list[float] = []
    async with asyncio.timeout(60):
        while not any(each > 400 for each in seen):
            message = await leader.hear()
            if isinstance(message, LoadReport):
                seen += message.units[0].remaining
            elif isinstance(message, EndForward) and message.finished:
                break
    return seen


async def test_a_predicted_length_reaches_the_schedulers_reports(
    predictor: None, worker: worker_pb2_grpc.WorkerStub, sink: tuple[Sink, str]
) -> None:
    assert 400 < (await told(worker, sink[1], reads=True))[-1] <= 500.0


async def test_a_predictor_is_not_asked_for_lengths_that_nobody_reads(
    predictor: None, worker: worker_pb2_grpc.WorkerStub, sink: tuple[Sink, str]
) -> None:
    seen = await told(worker, sink[1], reads=False)
    assert len(seen) > 40
    assert all(math.isnan(each) for each in seen)
