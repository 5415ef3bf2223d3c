"""What is never taken from a peer unchecked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

from headway.cluster import Role, UnitLoad
from headway.errors import invalid
from headway.messages import PassWork
from headway.request import FinishReason, StreamKey
from protos import common_pb2 as pb

MAX_ID_CHARS = 256
MAX_TEXT_CHARS = 4096
MAX_DP_UNITS = 4096

K = TypeVar("K", bound=Enum)
V = TypeVar("V")

ROLE_TO_PB = MappingProxyType(
    {
        Role.PREFILL: pb.ROLE_PREFILL,
        Role.DECODE: pb.ROLE_DECODE,
        Role.UNIFIED: pb.ROLE_UNIFIED,
        Role.CONVERTIBLE: pb.ROLE_CONVERTIBLE,
    }
)
ROLE_FROM_PB = MappingProxyType({int(number): role for role, number in ROLE_TO_PB.items()})

FINISH_TO_PB = MappingProxyType(
    {
        FinishReason.STOP: pb.FINISH_REASON_STOP,
        FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
        FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
        FinishReason.ERROR: pb.FINISH_REASON_ERROR,
    }
)
FINISH_FROM_PB = MappingProxyType({int(number): reason for reason, number in FINISH_TO_PB.items()})


def known(table: Mapping[int, V], number: int, name: str) -> V:
    """The enum's member; refuses a number that nobody knows."""
    value = table.get(number)
    if value is None:
        raise invalid(name, number, f"one of {', '.join(str(n) for n in table)}")
    return value


def unpack_role(number: int) -> Role:
    """What a worker is to serve, checked."""
    return known(ROLE_FROM_PB, number, "role")


def an_id(value: str, name: str) -> str:
    """A name that is there and not endless."""
    if not 0 < len(value) <= MAX_ID_CHARS:
        raise invalid(name, value, f"1 to {MAX_ID_CHARS} characters long")
    return value


def a_unit(value: int) -> int:
    """A DP unit's number that some worker may have."""
    if value >= MAX_DP_UNITS:
        raise invalid("unit", value, f"below {MAX_DP_UNITS}")
    return value


def text(value: str) -> str:
    """A message for people, cut where it is endless."""
    return value if len(value) <= MAX_TEXT_CHARS else value[:MAX_TEXT_CHARS] + "…"


def finite(value: float, name: str) -> float:
    """A number that is one."""
    if not math.isfinite(value):
        raise invalid(name, value, "a finite number")
    return value


def key(gateway_id: str, stream_id: int) -> StreamKey:
    """A stream's name, checked."""
    return StreamKey(an_id(gateway_id, "gateway_id"), stream_id)


def pack_refs(keys: Iterable[StreamKey]) -> list[pb.StreamRef]:
    """Streams' names."""
    return [pb.StreamRef(gateway_id=each.gateway_id, stream_id=each.stream_id) for each in keys]


def unpack_refs(refs: Iterable[pb.StreamRef]) -> tuple[StreamKey, ...]:
    """Streams' names, checked."""
    return tuple(key(ref.gateway_id, ref.stream_id) for ref in refs)


def pack_work(work: PassWork) -> pb.PassWork:
    """Passes, added up."""
    return pb.PassWork(**asdict(work))


def unpack_work(packed: pb.PassWork) -> PassWork:
    """The same; how long they took is for the policy to judge."""
    return PassWork(
        packed.num_passes,
        packed.seconds,
        packed.prefill_tokens,
        packed.prefill_context,
        packed.batch,
        packed.kv_tokens,
    )


def pack_loads(loads: Iterable[UnitLoad]) -> list[pb.UnitLoad]:
    """Loads of DP units."""
    return [
        pb.UnitLoad(
            unit=load.unit,
            queued_prefill_tokens=load.queued_prefill_tokens,
            num_running=load.num_running,
            kv_tokens=load.kv_tokens,
            num_free_blocks=load.num_free_blocks,
            host_tokens=load.host_tokens,
            num_reasoning=load.num_reasoning,
            num_fresh_answering=load.num_fresh_answering,
            has_waiting_reader=not load.is_on_schedule,
        )
        for load in loads
    ]


def unpack_loads(loads: Iterable[pb.UnitLoad]) -> tuple[UnitLoad, ...]:
    """Loads of DP units; every count is unsigned on the wire."""
    return tuple(
        UnitLoad(
            a_unit(load.unit),
            load.queued_prefill_tokens,
            load.num_running,
            load.kv_tokens,
            load.num_free_blocks,
            load.host_tokens,
            load.num_reasoning,
            load.num_fresh_answering,
            not load.has_waiting_reader,
        )
        for load in loads
    )
