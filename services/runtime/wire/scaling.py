"""To and from the autoscaler: rates, fleets, decisions."""

from __future__ import annotations

from dataclasses import asdict, replace

from headway.core.autoscaler.events import FleetReport, PublishTargets, RateReport
from headway.policies.scaling.protocol import (
    Fleet,
    PoolLoad,
    Rates,
    StartUp,
    Targets,
    WorkSample,
)
from protos import autoscaler_pb2 as pb
from services.runtime.wire.checks import an_id, finite, pack_work, text, unpack_work


def unpack_rate_report(packed: pb.RateReport) -> RateReport:
    """A gateway's rates; the event refuses what is no figure."""
    return RateReport(
        packed.gateway_id,
        packed.requests_per_s,
        packed.input_tokens_per_s,
        packed.output_tokens_per_s,
        packed.observed_at,
        packed.window,
        tuple(packed.bucket_tokens_per_s),
        text(packed.model),
    )


def pack_fleet(fleet: Fleet, model: str = "") -> pb.FleetReport:
    """All instances of a model."""
    packed = pb.FleetReport(
        model=model,
        samples=[
            pb.WorkSample(worker_id=s.worker_id, stage=s.stage, work=pack_work(s.work))
            for s in fleet.samples
        ],
        prefill=_pack_pool(fleet.prefill),
        decode=_pack_pool(fleet.decode),
        convertible=_pack_pool(fleet.convertible),
        unified=_pack_pool(fleet.unified),
    )
    if fleet.start_up is not None:
        packed.start_up.CopyFrom(pb.StartUp(**asdict(fleet.start_up)))
    return packed


def unpack_fleet(packed: pb.FleetReport) -> FleetReport:
    """The same; the event refuses what is no load."""
    return FleetReport(
        Fleet(
            _unpack_pool(packed.prefill),
            _unpack_pool(packed.decode),
            _unpack_pool(packed.convertible),
            _unpack_pool(packed.unified),
            tuple(
                WorkSample(an_id(s.worker_id, "worker_id"), text(s.stage), unpack_work(s.work))
                for s in packed.samples
            ),
            _unpack_start_up(packed.start_up) if packed.HasField("start_up") else None,
        ),
        text(packed.model),
    )


def pack_targets(decided: PublishTargets) -> pb.Targets:
    """What is wanted, since when, and why."""
    return pb.Targets(
        **asdict(decided.targets), decided_at=decided.decided_at, policy=decided.policy
    )


def pack_decision(decided: PublishTargets) -> pb.ScalingDecision:
    """A decision with its figures, for people."""
    packed = pb.ScalingDecision(targets=pack_targets(decided))
    if decided.rates is not None:
        rates = asdict(decided.rates)
        packed.rates.CopyFrom(pb.ScalingRates(**rates))
    if decided.fleet is not None:
        packed.fleet.CopyFrom(pack_fleet(replace(decided.fleet, samples=())))
    return packed


def unpack_decision(packed: pb.ScalingDecision) -> PublishTargets:
    """The same."""
    said, rates = packed.targets, None
    if packed.HasField("rates"):
        rates = Rates(
            finite(packed.rates.requests_per_s, "requests_per_s"),
            finite(packed.rates.input_tokens_per_s, "input_tokens_per_s"),
            finite(packed.rates.output_tokens_per_s, "output_tokens_per_s"),
            tuple(packed.rates.bucket_tokens_per_s),
        )
    return PublishTargets(
        Targets(
            said.num_prefill,
            said.num_decode,
            said.num_convertible,
            said.num_unified,
            text(said.reason),
        ),
        finite(said.decided_at, "decided_at"),
        text(said.policy),
        rates,
        unpack_fleet(packed.fleet).fleet if packed.HasField("fleet") else None,
    )


def _unpack_start_up(packed: pb.StartUp) -> StartUp:
    seconds = finite(packed.seconds, "start_up seconds")
    return StartUp(seconds, packed.num_measured, packed.num_standby)


def _pack_pool(pool: PoolLoad) -> pb.PoolLoad:
    return pb.PoolLoad(**asdict(pool))


def _unpack_pool(packed: pb.PoolLoad) -> PoolLoad:
    return PoolLoad(
        packed.num_ready,
        packed.num_starting,
        packed.num_requests,
        packed.backlog_tokens,
        packed.busy,
        packed.memory,
    )
