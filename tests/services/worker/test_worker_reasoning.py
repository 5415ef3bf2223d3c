"""A real model that could reason and answers at once: its worker says that it answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from headway.messages import ControlHello, Dispatch, EndForward, UnitBatch, WantedReports
from headway.request import Request
from protos import worker_pb2_grpc
from services.runtime.reasoning import find_markers
from services.runtime.rooms import model_folder
from tests.fakes.worker_service import Leader, Sink, make_request

MINI = model_folder("headway-mini")


async def answering(worker: worker_pb2_grpc.WorkerStub, request: Request) -> list[int]:
    """Streams that began to answer, by the reports until the request has ended."""
    leader = Leader(worker, 1)
    await leader.send(ControlHello("scheduler-1", 1, WantedReports(phases=True)))
    await leader.send(Dispatch(7, (UnitBatch(0, (request,)),)))
    found: list[int] = []
    async with asyncio.timeout(60):
        while True:
            message = await leader.hear()
            if isinstance(message, EndForward):
                found += [held.key.stream_id for held in message.answering]
                if message.finished:
                    return found


async def test_an_output_that_does_not_think_is_an_answer(
    worker: worker_pb2_grpc.WorkerStub, sink: tuple[Sink, str]
) -> None:
    request = replace(make_request(sink[1], max_tokens=40), reasons=True)
    assert await answering(worker, request) == [request.key.stream_id]


async def test_thoughts_that_the_prompt_has_opened_are_none(
    worker: worker_pb2_grpc.WorkerStub, sink: tuple[Sink, str]
) -> None:
    request = replace(make_request(sink[1], max_tokens=6), reasons=True)
    opened = (*request.prompt_token_ids, *find_markers(MINI).start)
    assert await answering(worker, replace(request, prompt_token_ids=opened)) == []
