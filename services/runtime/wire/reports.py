"""From a worker to the scheduler leader."""

from __future__ import annotations

from collections.abc import Iterable

from headway.cluster import WorkerInfo
from headway.errors import invalid
from headway.messages import (
    Accepted,
    EndForward,
    FinishedRequest,
    HandedBack,
    HandoffResult,
    HeldRequest,
    LoadReport,
    Snapshot,
)
from protos import common_pb2 as common
from protos import worker_pb2 as pb
from services.runtime.wire.checks import (
    FINISH_FROM_PB,
    FINISH_TO_PB,
    MAX_DP_UNITS,
    ROLE_FROM_PB,
    ROLE_TO_PB,
    a_unit,
    an_id,
    key,
    known,
    pack_loads,
    pack_refs,
    pack_work,
    text,
    unpack_loads,
    unpack_refs,
    unpack_work,
)
from services.runtime.wire.load_reports import pack_load_report, unpack_load_report

FromWorker = Snapshot | Accepted | EndForward | HandoffResult | HandedBack | LoadReport


def pack_from_worker(message: FromWorker) -> pb.WorkerToScheduler:
    """What a worker reports."""
    match message:
        case Snapshot():
            snapshot = pb.Snapshot(
                info=_pack_info(message.info),
                loads=pack_loads(message.loads),
                held=_pack_held(message.held),
                draining=message.draining,
            )
            return pb.WorkerToScheduler(snapshot=snapshot)
        case Accepted():
            return pb.WorkerToScheduler(accepted=pb.Accepted(dispatch_id=message.dispatch_id))
        case EndForward():
            report = pb.EndForward(
                pass_id=message.pass_id,
                pass_time=message.pass_time,
                dispatch_ids=message.dispatch_ids,
                loads=pack_loads(message.loads),
                prefilled=_pack_held(message.prefilled),
                finished=_pack_finished(message.finished),
                answering=_pack_held(message.answering),
                work=[pack_work(each) for each in message.work],
            )
            return pb.WorkerToScheduler(end_forward=report)
        case HandoffResult():
            result = pb.HandoffResult(
                gateway_id=message.key.gateway_id,
                stream_id=message.key.stream_id,
                target_worker_id=message.target_worker_id,
                target_unit=message.target_unit,
                ok=message.ok,
                retriable=message.retriable,
                message=message.message,
            )
            return pb.WorkerToScheduler(handoff_result=result)
        case HandedBack(keys):
            return pb.WorkerToScheduler(handed_back=pb.HandedBack(requests=pack_refs(keys)))
        case LoadReport():
            return pb.WorkerToScheduler(load_report=pack_load_report(message))


def unpack_from_worker(packed: pb.WorkerToScheduler) -> FromWorker:
    """What a worker reports, checked. A ``pass_time`` is for the policy to judge."""
    match packed.WhichOneof("body"):
        case "snapshot":
            info = _unpack_info(packed.snapshot.info)
            loads = unpack_loads(packed.snapshot.loads)
            if sorted(load.unit for load in loads) != list(range(info.num_units)):
                shown = [load.unit for load in loads]
                raise invalid("loads", shown, f"one for each of {info.num_units} units")
            held = _unpack_held(packed.snapshot.held)
            return Snapshot(info, loads, held, packed.snapshot.draining)
        case "accepted":
            return Accepted(packed.accepted.dispatch_id)
        case "end_forward":
            report = packed.end_forward
            return EndForward(
                pass_id=report.pass_id,
                pass_time=report.pass_time,
                dispatch_ids=tuple(report.dispatch_ids),
                loads=unpack_loads(report.loads),
                prefilled=_unpack_held(report.prefilled),
                finished=_unpack_finished(report.finished),
                answering=_unpack_held(report.answering),
                work=tuple(unpack_work(each) for each in report.work),
            )
        case "handoff_result":
            result = packed.handoff_result
            return HandoffResult(
                key(result.gateway_id, result.stream_id),
                an_id(result.target_worker_id, "target_worker_id"),
                a_unit(result.target_unit),
                ok=result.ok,
                retriable=result.retriable,
                message=text(result.message),
            )
        case "handed_back":
            return HandedBack(unpack_refs(packed.handed_back.requests))
        case "load_report":
            return unpack_load_report(packed.load_report)
        case body:
            bodies = "snapshot, accepted, end_forward, handoff_result, handed_back or load_report"
            raise invalid("body", body, bodies)


def _pack_info(info: WorkerInfo) -> common.WorkerInfo:
    return common.WorkerInfo(
        worker_id=info.worker_id,
        address=info.address,
        role=ROLE_TO_PB[info.role],
        model=info.model,
        num_units=info.num_units,
        chunk_tokens=info.chunk_tokens,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_model_len=info.max_model_len,
        kv_bytes_per_token=info.kv_bytes_per_token,
    )


def _unpack_info(packed: common.WorkerInfo) -> WorkerInfo:
    for name in ("num_units", "chunk_tokens", "block_size", "num_blocks", "max_model_len"):
        if getattr(packed, name) < 1:
            raise invalid(name, getattr(packed, name), "at least 1")
    if packed.num_units > MAX_DP_UNITS:
        raise invalid("num_units", packed.num_units, f"at most {MAX_DP_UNITS}")
    return WorkerInfo(
        worker_id=an_id(packed.worker_id, "worker_id"),
        address=an_id(packed.address, "address"),
        role=known(ROLE_FROM_PB, packed.role, "role"),
        model=an_id(packed.model, "model"),
        num_units=packed.num_units,
        chunk_tokens=packed.chunk_tokens,
        block_size=packed.block_size,
        num_blocks=packed.num_blocks,
        max_model_len=packed.max_model_len,
        kv_bytes_per_token=packed.kv_bytes_per_token,
    )


def _pack_held(held: Iterable[HeldRequest]) -> list[pb.HeldRequest]:
    return [
        pb.HeldRequest(
            gateway_id=one.key.gateway_id,
            stream_id=one.key.stream_id,
            request_id=one.request_id,
            unit=one.unit,
            num_tokens=one.num_tokens,
            awaiting_handoff=one.awaiting_handoff,
            decoding=one.decoding,
            arriving=one.arriving,
        )
        for one in held
    ]


def _unpack_held(held: Iterable[pb.HeldRequest]) -> tuple[HeldRequest, ...]:
    return tuple(
        HeldRequest(
            key(one.gateway_id, one.stream_id),
            an_id(one.request_id, "request_id"),
            a_unit(one.unit),
            one.num_tokens,
            one.awaiting_handoff,
            one.decoding,
            one.arriving,
        )
        for one in held
    )


def _pack_finished(finished: Iterable[FinishedRequest]) -> list[pb.FinishedRequest]:
    return [
        pb.FinishedRequest(
            gateway_id=one.key.gateway_id,
            stream_id=one.key.stream_id,
            unit=one.unit,
            num_prompt_tokens=one.num_prompt_tokens,
            num_output_tokens=one.num_output_tokens,
            finish_reason=FINISH_TO_PB[one.finish_reason],
        )
        for one in finished
    ]


def _unpack_finished(finished: Iterable[pb.FinishedRequest]) -> tuple[FinishedRequest, ...]:
    return tuple(
        FinishedRequest(
            key(one.gateway_id, one.stream_id),
            a_unit(one.unit),
            one.num_prompt_tokens,
            one.num_output_tokens,
            known(FINISH_FROM_PB, one.finish_reason, "finish_reason"),
        )
        for one in finished
    )
