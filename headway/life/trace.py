"""Lives in Chrome's trace event format, which Perfetto and ``chrome://tracing`` show.

One process is "requests", with a track for each request. Each worker is a process, too, whose
tracks are lanes: a request's stay takes the lowest free one, so that a worker shows how many
requests it has at once. Arrows lead from a stay to the next one, on another worker. Instants are
microseconds after the first arrival; ``otherData`` says when that was.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from headway.life.moments import MomentKind
from headway.life.parts import LifePart
from headway.life.record import LifeRecord

REQUESTS_PID = 1
_FIRST_WORKER_PID = 2
_SHOWN = (
    *(MomentKind.PREEMPTED, MomentKind.SWAPS_OUT, MomentKind.LOST, MomentKind.PREDICTED),
    *(MomentKind.KV_LOST, MomentKind.PACED),
)

TraceEvent = dict[str, Any]


class _Stay(NamedTuple):
    """A request on one worker: µs after the trace's origin."""

    begin: int
    end: int
    worker_id: str
    request_id: str
    parts: tuple[LifePart, ...]
    offset: int
    flow: int
    """The number of the arrow that leads here, 0 for none."""
    is_left: bool
    """True if another stay follows."""


def trace_of(lives: Iterable[LifeRecord]) -> dict[str, Any]:
    """Return the trace, ready for JSON."""
    ordered = sorted(lives, key=lambda life: (life.arrival_at, life.request_id))
    origin = ordered[0].arrival_at if ordered else 0.0
    events: list[TraceEvent] = [_named("process_name", "requests", REQUESTS_PID)]
    stays: list[_Stay] = []
    num_flows = 0
    for tid, life in enumerate(ordered, start=1):
        offset = round((life.arrival_at - origin) * 1e6)
        events += _request_track(life, tid, offset)
        own_stays = _stays(life, offset, num_flows)
        num_flows += max(0, len(own_stays) - 1)
        stays += own_stays
    events += _worker_tracks(stays)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"origin_at": origin},
    }


def _request_track(life: LifeRecord, tid: int, offset: int) -> Iterator[TraceEvent]:
    yield _named("thread_name", life.request_id, REQUESTS_PID, tid)
    for part in life.parts:
        yield _slice(part.kind.value, offset, part, REQUESTS_PID, tid) | {
            "args": {"worker": part.worker_id}
        }
    for moment in life.moments:
        if moment.kind in _SHOWN:
            yield {
                "name": moment.kind.name.lower(),
                "ph": "i",
                "s": "t",
                "ts": offset + min(moment.at, life.total),
                "pid": REQUESTS_PID,
                "tid": tid,
                "args": {"why": moment.cause, "amount": moment.amount},
            }


def _stays(life: LifeRecord, offset: int, num_flows: int) -> list[_Stay]:
    groups = [
        (worker_id, tuple(parts))
        for worker_id, parts in groupby(life.parts, key=lambda part: part.worker_id)
        if worker_id
    ]
    return [
        _Stay(
            offset + parts[0].begin,
            offset + parts[-1].end,
            worker_id,
            life.request_id,
            parts,
            offset,
            num_flows + place if place else 0,
            place + 1 < len(groups),
        )
        for place, (worker_id, parts) in enumerate(groups)
    ]


def _worker_tracks(stays: Sequence[_Stay]) -> Iterator[TraceEvent]:
    tracks: dict[_Stay, tuple[int, int]] = {}
    workers = sorted({stay.worker_id for stay in stays})
    for pid, worker_id in enumerate(workers, start=_FIRST_WORKER_PID):
        yield _named("process_name", worker_id, pid)
        mine = sorted(stay for stay in stays if stay.worker_id == worker_id)
        for stay, tid in zip(mine, _lanes(mine), strict=True):
            tracks[stay] = pid, tid
            yield from _stay_events(stay, pid, tid)
    for before, after in pairwise(stays):
        if before.is_left:
            yield from _arrow(before, after, tracks)


def _lanes(stays: Sequence[_Stay]) -> Iterator[int]:
    """Yield the lane of each stay, from 1: the lowest that is free when it begins."""
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    num_lanes = 0
    for stay in stays:
        while busy and busy[0][0] <= stay.begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            num_lanes += 1
            lane = num_lanes
        heapq.heappush(busy, (stay.end, lane))
        yield lane


def _stay_events(stay: _Stay, pid: int, tid: int) -> Iterator[TraceEvent]:
    yield {
        "name": stay.request_id,
        "cat": "stay",
        "ph": "X",
        "ts": stay.begin,
        "dur": stay.end - stay.begin,
        "pid": pid,
        "tid": tid,
    }
    for part in stay.parts:
        yield _slice(part.kind.value, stay.offset, part, pid, tid)


def _arrow(
    before: _Stay, after: _Stay, tracks: Mapping[_Stay, tuple[int, int]]
) -> Iterator[TraceEvent]:
    """Yield the two ends of a move's arrow, which begins in the last instant of a stay."""
    arrow = {"name": "move", "cat": "move", "id": after.flow}
    for end, ts, stay in (
        ({"ph": "s"}, max(before.begin, before.end - 1), before),
        ({"ph": "f", "bp": "e"}, after.begin, after),
    ):
        pid, tid = tracks[stay]
        yield arrow | end | {"ts": ts, "pid": pid, "tid": tid}


def _slice(name: str, offset: int, part: LifePart, pid: int, tid: int) -> TraceEvent:
    return {
        "name": name,
        "cat": "part",
        "ph": "X",
        "ts": offset + part.begin,
        "dur": part.end - part.begin,
        "pid": pid,
        "tid": tid,
    }


def _named(what: str, name: str, pid: int, tid: int = 0) -> TraceEvent:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
