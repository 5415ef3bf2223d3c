"""Fuzzing of what services say to each other: every kind of message, damaged, through the wire."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from headway.errors import HeadwayError
from proof.fuzz.campaign import raised
from proof.fuzz.messages import damaged, fill
from protos import (
    autoscaler_pb2,
    gateway_pb2,
    predictor_pb2,
    scheduler_pb2,
    worker_pb2,
)
from services.runtime import wire

KINDS: Sequence[tuple[type[Any], Callable[[Any], object]]] = (
    (worker_pb2.WorkerToScheduler, wire.FROM_WORKER.unpack),
    (worker_pb2.SchedulerToWorker, partial(wire.TO_WORKER.unpack, now=0.0)),
    (scheduler_pb2.GatewayMessage, partial(wire.FROM_GATEWAY.unpack_all, now=0.0)),
    (scheduler_pb2.SchedulerMessage, wire.TO_GATEWAY.unpack_all),
    (scheduler_pb2.ClusterPicture, wire.PICTURE.unpack),
    (worker_pb2.KvChunk, partial(wire.KV.unpack, now=0.0)),
    (worker_pb2.SetRoleRequest, wire.SET_ROLE.unpack),
    (gateway_pb2.TokenBatch, wire.unpack_token_batch),
    (predictor_pb2.PredictRequest, wire.unpack_question),
    (predictor_pb2.PredictReply, lambda packed: wire.unpack_remaining(packed, 2)),
    (autoscaler_pb2.RateReport, wire.RATE_REPORT.unpack),
    (autoscaler_pb2.FleetReport, wire.unpack_fleet),
    (autoscaler_pb2.ScalingDecision, wire.unpack_decision),
)
"""Every kind of message that a service reads from another, and what reads it."""


class WireTarget:
    """The first byte of an input says which kind; the rest is the message."""

    unit = 1

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Return how many were taken, refused, or no message at all."""
        return self._outcomes

    def make(self, rng: random.Random) -> bytes:
        """Return a filled message of some kind, often damaged."""
        kind = rng.randrange(len(KINDS))
        message = fill(KINDS[kind][0](), rng, hostile=rng.choice((0.0, 0.1, 0.5)))
        return bytes([kind]) + damaged(message.SerializeToString(), rng)

    def attempt(self, given: bytes) -> str:
        """Parse and unpack; a HeadwayError is the refusal that we want."""
        if not given or given[0] >= len(KINDS):
            return ""
        packed_type, unpack = KINDS[given[0]]
        packed = packed_type()
        try:
            packed.ParseFromString(given[1:])
        except DecodeError:
            self._outcomes["no message"] += 1
            return ""
        try:
            unpack(packed)
        except HeadwayError:
            self._outcomes["refused"] += 1
        except Exception as error:
            return f"{packed_type.__name__}: {raised(error)}"
        else:
            self._outcomes["taken"] += 1
        return ""

    def check(self) -> str:
        """Return nothing: each input stands alone."""
        return ""

    def close(self) -> None:
        """Do nothing: nothing was started."""
