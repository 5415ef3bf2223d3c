"""Rates, fleets and decisions, to and from the autoscaler."""

from __future__ import annotations

from dataclasses import asdict, replace

from headway.core.autoscaler.events import FleetReport, PublishTargets, RateReport
from headway.errors import require_between
from headway.policies.scaling.protocol import Fleet, Rates, Targets
from protos import autoscaler_pb2 as pb
from services.runtime.wire.checks import finite, text
from services.runtime.wire.codec import Codec, codec_of

RATE_REPORT: Codec[RateReport] = codec_of(RateReport, pb.RateReport)
_FLEET: Codec[Fleet] = codec_of(Fleet, pb.FleetReport)
_COUNTS = ("num_ready", "num_starting", "num_requests")
_MOST = 2**24
"""Instances of a pool, or requests in it."""
_MOST_TOKENS = 2**53
_RATES: Codec[Rates] = codec_of(Rates, pb.ScalingRates)
_TARGETS: Codec[Targets] = codec_of(Targets, pb.Targets)


def pack_fleet(fleet: Fleet, model: str = "") -> pb.FleetReport:
    """Return all instances of a model as a message."""
    packed: pb.FleetReport = _FLEET.pack(fleet)
    packed.model = model
    return packed


def unpack_fleet(packed: pb.FleetReport) -> FleetReport:
    """Return all instances of a model, checked.

    Others add to their counts, and send the sums on: these must not be near what a field holds.
    """
    for pool in (packed.prefill, packed.decode, packed.convertible, packed.unified):
        for name in _COUNTS:
            require_between(name, getattr(pool, name), 0, _MOST)
        require_between("backlog_tokens", pool.backlog_tokens, 0, _MOST_TOKENS)
    require_between("num_standby", packed.start_up.num_standby, 0, _MOST)
    require_between("num_measured", packed.start_up.num_measured, 0, _MOST)
    return FleetReport(_FLEET.unpack(packed), text(packed.model))


def pack_targets(decided: PublishTargets) -> pb.Targets:
    """Return the targets as a message, with their time and reason."""
    return pb.Targets(
        **asdict(decided.targets), decided_at=decided.decided_at, policy=decided.policy
    )


def pack_decision(decided: PublishTargets) -> pb.ScalingDecision:
    """Return a decision with its figures, for people: without velocity samples."""
    return pb.ScalingDecision(
        targets=pack_targets(decided),
        rates=None if decided.rates is None else _RATES.pack(decided.rates),
        fleet=None if decided.fleet is None else pack_fleet(replace(decided.fleet, samples=())),
    )


def unpack_decision(packed: pb.ScalingDecision) -> PublishTargets:
    """Return a decision with its figures, checked."""
    return PublishTargets(
        _TARGETS.unpack(packed.targets),
        finite(packed.targets.decided_at, "decided_at"),
        text(packed.targets.policy),
        _RATES.unpack(packed.rates) if packed.HasField("rates") else None,
        unpack_fleet(packed.fleet).fleet if packed.HasField("fleet") else None,
    )
