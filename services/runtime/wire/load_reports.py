"""Load reports (STAR): the requests that run on each unit, checked as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headway.errors import invalid
from headway.messages import LoadReport, RunningRequests
from headway.request import StreamKey
from protos import worker_pb2 as pb
from services.runtime.wire.checks import MAX_DP_UNITS, an_id, require_at_most

MAX_RUNNING = 65_536
MAX_STEPS = 4096


def pack_load_report(report: LoadReport) -> pb.LoadReport:
    """Return every unit's running requests as a message."""
    units = [_pack_unit(running) for running in report.units]
    return pb.LoadReport(units=units, step_time=report.step_time)


def _pack_unit(running: RunningRequests) -> pb.RunningRequests:
    places: dict[str, int] = {}
    gateways = [places.setdefault(key.gateway_id, len(places)) for key in running.keys]
    return pb.RunningRequests(
        unit=running.unit,
        gateway_ids=places,
        gateways=gateways,
        stream_ids=[key.stream_id for key in running.keys],
        num_tokens=running.num_tokens,
        remaining=running.remaining,
        future=running.future,
        lost_tokens=running.lost_tokens,
    )


def unpack_load_report(packed: pb.LoadReport) -> LoadReport:
    """Return every unit's running requests, checked; its reader checks the number of units."""
    require_at_most(packed.units, MAX_DP_UNITS, "units")
    numbers = [running.unit for running in packed.units]
    if numbers != list(range(len(numbers))):
        raise invalid("units", numbers, "all units, in order from 0")
    units = tuple(_unpack_unit(running) for running in packed.units)
    return LoadReport(units, packed.step_time)


def _unpack_unit(packed: pb.RunningRequests) -> RunningRequests:
    num_running = len(packed.stream_ids)
    if num_running > MAX_RUNNING:
        raise invalid("the number of running requests", num_running, f"at most {MAX_RUNNING}")
    lengths = (len(packed.gateways), len(packed.num_tokens), len(packed.remaining))
    if lengths != (num_running,) * 3:
        raise invalid("the running requests' arrays' lengths", (num_running, *lengths), "equal")
    if len(packed.future) > MAX_STEPS:
        raise invalid("future", len(packed.future), f"at most {MAX_STEPS} steps long")
    remaining, future = list(packed.remaining), list(packed.future)
    _refuse(remaining, "remaining", "a finite number of tokens from 0 on, or NaN for unknown")
    if np.isnan(future).any():
        raise invalid("future", math.nan, "a number of tokens")
    _refuse(future, "future", "a finite number of tokens from 0 on")
    return RunningRequests(
        packed.unit,
        _keys(packed),
        tuple(packed.num_tokens),
        tuple(remaining),
        tuple(future),
        packed.lost_tokens,
    )


def _keys(packed: pb.RunningRequests) -> tuple[StreamKey, ...]:
    names = [an_id(name, "gateway_id") for name in packed.gateway_ids]
    if max(packed.gateways, default=0) >= max(1, len(names)) or (packed.gateways and not names):
        raise invalid("gateways", max(packed.gateways), f"below {len(names)}")
    keys = tuple(
        StreamKey(names[place], stream_id)
        for place, stream_id in zip(packed.gateways, packed.stream_ids, strict=True)
    )
    if len(set(keys)) != len(keys):
        raise invalid("the running requests", len(keys), "each named once")
    return keys


def _refuse(values: Sequence[float], name: str, limit: str) -> None:
    """Refuse negative and infinite values."""
    array = np.asarray(values, dtype=np.float64)
    wrong = array[(array < 0) | np.isinf(array)]
    if len(wrong):
        raise invalid(name, float(wrong[0]), limit)
