"""From the scheduler leader to a worker."""

from __future__ import annotations

from headway.errors import invalid
from headway.messages import (
    CancelStream,
    ControlHello,
    Dispatch,
    Drain,
    GiveBack,
    Handoff,
    Tuned,
    UnitBatch,
    WantedReports,
)
from protos import worker_pb2 as pb
from services.runtime.wire.checks import a_unit, an_id, key, pack_refs, unpack_refs
from services.runtime.wire.requests import pack_request, unpack_request

ToWorker = ControlHello | Dispatch | Handoff | CancelStream | GiveBack | Drain | Tuned


def pack_to_worker(message: ToWorker) -> pb.SchedulerToWorker:
    """What the scheduler says to a worker."""
    match message:
        case ControlHello():
            hello = pb.ControlHello(
                scheduler_id=message.scheduler_id,
                fencing_token=message.fencing_token,
                wants=_pack_wants(message.wants),
            )
            return pb.SchedulerToWorker(hello=hello)
        case Dispatch():
            batches = [
                pb.UnitBatch(unit=batch.unit, requests=[pack_request(r) for r in batch.requests])
                for batch in message.batches
            ]
            dispatch = pb.Dispatch(dispatch_id=message.dispatch_id, batches=batches)
            return pb.SchedulerToWorker(dispatch=dispatch)
        case Handoff():
            handoff = pb.Handoff(
                gateway_id=message.key.gateway_id,
                stream_id=message.key.stream_id,
                target_worker_id=message.target_worker_id,
                target_address=message.target_address,
                target_unit=message.target_unit,
                fencing_token=message.fencing_token,
            )
            return pb.SchedulerToWorker(handoff=handoff)
        case CancelStream(stream):
            cancel = pb.CancelStream(gateway_id=stream.gateway_id, stream_id=stream.stream_id)
            return pb.SchedulerToWorker(cancel=cancel)
        case GiveBack(keys):
            return pb.SchedulerToWorker(give_back=pb.GiveBack(requests=pack_refs(keys)))
        case Drain():
            return pb.SchedulerToWorker(drain=pb.Drain())
        case Tuned(gamma):
            return pb.SchedulerToWorker(tuned=pb.Tuned(gamma=gamma))


def unpack_to_worker(packed: pb.SchedulerToWorker) -> ToWorker:
    """What the scheduler says to a worker, checked."""
    match packed.WhichOneof("body"):
        case "hello":
            hello = packed.hello
            wants = _unpack_wants(hello.wants) if hello.HasField("wants") else WantedReports()
            return ControlHello(
                an_id(hello.scheduler_id, "scheduler_id"), hello.fencing_token, wants
            )
        case "dispatch":
            return Dispatch(
                packed.dispatch.dispatch_id,
                tuple(
                    UnitBatch(a_unit(batch.unit), tuple(unpack_request(r) for r in batch.requests))
                    for batch in packed.dispatch.batches
                ),
            )
        case "handoff":
            handoff = packed.handoff
            return Handoff(
                key(handoff.gateway_id, handoff.stream_id),
                an_id(handoff.target_worker_id, "target_worker_id"),
                an_id(handoff.target_address, "target_address"),
                a_unit(handoff.target_unit),
                handoff.fencing_token,
            )
        case "cancel":
            return CancelStream(key(packed.cancel.gateway_id, packed.cancel.stream_id))
        case "give_back":
            return GiveBack(unpack_refs(packed.give_back.requests))
        case "drain":
            return Drain()
        case "tuned":
            return Tuned(packed.tuned.gamma)
        case body:
            raise invalid(
                "body", body, "hello, dispatch, handoff, cancel, give_back, drain or tuned"
            )


def _pack_wants(wants: WantedReports) -> pb.WantedReports:
    return pb.WantedReports(
        phases=wants.phases,
        load_interval=wants.load_interval,
        num_steps=wants.num_steps,
        step_tokens=wants.step_tokens,
        lengths=wants.lengths,
        work=wants.work,
    )


def _unpack_wants(packed: pb.WantedReports) -> WantedReports:
    """It refuses by itself what is out of range."""
    return WantedReports(
        phases=packed.phases,
        load_interval=packed.load_interval,
        num_steps=packed.num_steps,
        step_tokens=packed.step_tokens,
        lengths=packed.lengths,
        work=packed.work,
    )
