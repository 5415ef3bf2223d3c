"""Calls to other services, in dataclasses; a peer's refusal is raised as ``HeadwayError``.

A call waits ``within`` seconds for its answer (DEADLINE_EXCEEDED).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import grpc

from headway.cluster import Role
from headway.core.autoscaler.events import PublishTargets, RateReport
from headway.core.autoscaler.starts import InstanceStart
from headway.errors import Code, HeadwayError
from headway.messages import ChangeRole
from headway.picture import ClusterPicture
from headway.policies.scaling.protocol import Fleet
from protos import (
    autoscaler_pb2,
    autoscaler_pb2_grpc,
    gateway_pb2,
    gateway_pb2_grpc,
    predictor_pb2,
    predictor_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    standby_pb2,
    standby_pb2_grpc,
    supervisor_pb2,
    supervisor_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from services.runtime.wire.pictures import PICTURE
from services.runtime.wire.predictions import unpack_remaining
from services.runtime.wire.scaling import RATE_REPORT, pack_fleet, unpack_decision
from services.runtime.wire.status import error_of
from services.runtime.wire.streams import SET_ROLE

T = TypeVar("T")
_Channel = grpc.aio.Channel
_NONCE = "headway-worker-nonce"
_ROLE_PATIENCE = 10.0
"""Seconds: one that is starved answers late, and another in its place takes longer to start."""

# --- streams --------------------------------------------------------------------------


def dial_control(
    channel: _Channel,
) -> grpc.aio.StreamStreamCall[worker_pb2.SchedulerToWorker, worker_pb2.WorkerToScheduler]:
    """Open a leader's stream to a worker (``TO_WORKER``, ``FROM_WORKER``)."""
    return worker_pb2_grpc.WorkerStub(channel).Control()


def dial_connect(
    channel: _Channel,
) -> grpc.aio.StreamStreamCall[scheduler_pb2.GatewayMessage, scheduler_pb2.SchedulerMessage]:
    """Open a gateway's stream to the leader (``FROM_GATEWAY``, ``TO_GATEWAY``)."""
    return scheduler_pb2_grpc.SchedulerStub(channel).Connect()


def dial_attach(
    channel: _Channel, nonce: str = ""
) -> grpc.aio.StreamStreamCall[gateway_pb2.TokenBatch, gateway_pb2.TokenControl]:
    """Open a worker's token stream to a gateway.

    ``nonce`` tells the worker's process from others that claim its name (``nonce_of``).
    """
    return gateway_pb2_grpc.TokenSinkStub(channel).Attach(metadata=((_NONCE, nonce),))


def nonce_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the nonce that a worker shows on its token stream, "" without one."""
    metadata = context.invocation_metadata() or ()
    return next((str(value) for name, value in metadata if name == _NONCE), "")


# --- single calls ---------------------------------------------------------------------


async def transfer_kv(
    channel: _Channel,
    chunks: AsyncIterator[worker_pb2.KvChunk] | Iterator[worker_pb2.KvChunk],
    *,
    within: float,
) -> None:
    """Send a request's KV to another worker (``KV``)."""
    await _answer(worker_pb2_grpc.WorkerStub(channel).TransferKv(chunks, timeout=within))


async def set_role(channel: _Channel, role: Role) -> None:
    """Change the role of a worker."""
    request = SET_ROLE.pack(ChangeRole(role))
    stub = worker_pb2_grpc.WorkerStub(channel)
    await _answer(stub.SetRole(request, timeout=_ROLE_PATIENCE))


async def activate(channel: _Channel, role: str, *, within: float) -> None:
    """Give a standby a role."""
    request = standby_pb2.ActivateRequest(role=role)
    await _answer(standby_pb2_grpc.StandbyStub(channel).Activate(request, timeout=within))


async def explain(channel: _Channel, request_id: str, *, within: float) -> list[str]:
    """Return the leader's decisions for a request, as JSON, oldest first."""
    request = scheduler_pb2.ExplainRequest(request_id=request_id)
    stub = scheduler_pb2_grpc.SchedulerStub(channel)
    return list((await _answer(stub.Explain(request, timeout=within))).decisions)


async def picture(channel: _Channel, *, within: float) -> ClusterPicture:
    """Return the cluster as its leader sees it."""
    stub = scheduler_pb2_grpc.SchedulerStub(channel)
    question = scheduler_pb2.PictureRequest()
    return PICTURE.unpack(await _answer(stub.Picture(question, timeout=within)))


async def report_rates(channel: _Channel, report: RateReport, *, within: float) -> None:
    """Report a gateway's rates to an autoscaler."""
    stub = autoscaler_pb2_grpc.AutoscalerStub(channel)
    await _answer(stub.ReportRates(RATE_REPORT.pack(report), timeout=within))


async def report_fleet(channel: _Channel, fleet: Fleet, model: str, *, within: float) -> None:
    """Report all instances of a model to an autoscaler."""
    stub = autoscaler_pb2_grpc.AutoscalerStub(channel)
    await _answer(stub.ReportFleet(pack_fleet(fleet, model), timeout=within))


async def scaling_decisions(
    channel: _Channel, num_decisions: int = 0, *, within: float
) -> list[PublishTargets]:
    """Return an autoscaler's newest decisions, oldest first; 0 returns all that it keeps."""
    request = autoscaler_pb2.GetDecisionsRequest(num_decisions=num_decisions)
    stub = autoscaler_pb2_grpc.AutoscalerStub(channel)
    reply = await _answer(stub.GetDecisions(request, timeout=within))
    return [unpack_decision(each) for each in reply.decisions]


async def predict(
    channel: _Channel, question: predictor_pb2.PredictRequest, *, within: float
) -> tuple[tuple[float, ...], float]:
    """Return each request's remaining tokens, and the weight against earlier predictions."""
    stub = predictor_pb2_grpc.PredictorStub(channel)
    reply = await _answer(stub.Predict(question, timeout=within))
    return unpack_remaining(reply, len(question.stream_ids))


async def observe(
    channel: _Channel, model: str, lengths: Sequence[tuple[int, int]], *, within: float
) -> None:
    """Report prompt and output tokens of finished requests to a predictor."""
    request = predictor_pb2.ObserveRequest(
        model=model,
        num_prompt_tokens=[prompt for prompt, _ in lengths],
        num_output_tokens=[output for _, output in lengths],
    )
    await _answer(predictor_pb2_grpc.PredictorStub(channel).Observe(request, timeout=within))


async def length_table(
    channel: _Channel, model: str, *, within: float
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the buckets' upper bounds in prompt tokens, and their mean output tokens."""
    request = predictor_pb2.GetTableRequest(model=model)
    stub = predictor_pb2_grpc.PredictorStub(channel)
    table = await _answer(stub.GetTable(request, timeout=within))
    return tuple(table.bucket_upper_bounds), tuple(table.mean_output_tokens)


# --- the supervisor of ``headway up`` -------------------------------------------------


class Replicas(NamedTuple):
    """A supervisor's workers by role, and its last starts by number, oldest first."""

    num_workers: Mapping[str, int]
    starts: Sequence[tuple[int, InstanceStart]]
    num_standby: int


async def replicas(channel: _Channel, *, within: float) -> Replicas:
    """Return what runs; wait for the connection."""
    request = supervisor_pb2.GetReplicasRequest()
    stub = supervisor_pb2_grpc.SupervisorStub(channel)
    reply = await _answer(stub.GetReplicas(request, timeout=within, wait_for_ready=True))
    starts = [
        (start.number, InstanceStart(start.worker_id, start.role, start.seconds, start.warm))
        for start in reply.starts
    ]
    num_workers = dict(sorted(reply.num_workers.items()))  # a map comes in any order
    return Replicas(num_workers, starts, reply.num_standby)


async def scale(channel: _Channel, role: str, num_workers: int, *, within: float) -> None:
    """Order a number of workers of a role; return at once."""
    request = supervisor_pb2.ScaleRequest(role=role, num_workers=num_workers)
    stub = supervisor_pb2_grpc.SupervisorStub(channel)
    await _answer(stub.Scale(request, timeout=within, wait_for_ready=True))


async def change_role(
    channel: _Channel, source: str, target: str, num_workers: int, *, within: float
) -> int:
    """Change workers of one role to another; return how many changed.

    ``within``: seconds beside those that the workers have to answer, all at once.
    """
    request = supervisor_pb2.ChangeRoleRequest(
        source=source, target=target, num_workers=num_workers
    )
    stub = supervisor_pb2_grpc.SupervisorStub(channel)
    timeout = within + _ROLE_PATIENCE
    reply = await _answer(stub.ChangeRole(request, timeout=timeout, wait_for_ready=True))
    return reply.num_changed


async def _answer(call: Awaitable[T]) -> T:
    """Wait for an answer; HeadwayError where none comes, as for a channel that somebody closes."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
    except asyncio.CancelledError as error:  # also what a closed channel's calls end with
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise HeadwayError(Code.UNAVAILABLE, "the channel was closed under a call") from error
