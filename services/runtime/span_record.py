"""A record of when each core heard of what, for the costs of every hop between them.

A JSON line an event: the instant, s since the epoch, the kind of event, and what it is about. It
costs microseconds, so that what it measures stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from headway.core.gateway.events import Submit
from headway.core.scheduler.events import WorkerReported
from headway.core.worker.events import KvArrived, KvOffered
from headway.engine import EngineStepped
from headway.forward_pass import PassResult
from headway.messages import Dispatch, EndForward, Handoff, TokenBatch
from headway.request import Request

SUFFIX = "spans"


class Heard(NamedTuple):
    """An event of a core: when it came, its kind, and what it is about.

    ``about``: request ids, stream keys as ``gateway/stream``, passes as ``worker/pass``, by kind.
    """

    at: float
    kind: str
    about: Sequence[Any]


class SpanRecord:
    """A file with a line for each event that tells a hop's begin or end."""

    def __init__(self, path: Path, service_id: str) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8")
        self._service_id = service_id
        self._num_steps = 0

    def note(self, event: object, now: float, actions: Sequence[object]) -> None:
        """Note an event, if it belongs to a hop."""
        hop = _heard(event, self._service_id)
        if isinstance(event, EngineStepped):
            self._num_steps += 1  # as the core numbers the passes that it reports
            drew = [_name(each.key) for each in event.drawn if each.token_ids]
            hop = "passed", (f"{self._service_id}/{self._num_steps}", *drew)
        if hop is not None:
            self._file.write(json.dumps((now, *hop)) + "\n")

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


def read_spans(folder: Path) -> Iterator[Heard]:
    """Yield what all cores that recorded into the folder heard, each core's in order."""
    for path in sorted(folder.glob(f"*.{SUFFIX}")):
        whole, _, _ = path.read_text("utf-8").rpartition("\n")  # a killed process's last is cut
        for line in whole.splitlines():
            yield Heard(*json.loads(line))


def _heard(event: object, service_id: str) -> tuple[str, Sequence[Any]] | None:
    match event:
        case Submit(request):
            return "submitted", (request.request_id,)
        case Request():
            return "requested", (event.request_id, _name(event.key))
        case Dispatch(_, batches):
            return "dispatched", [_name(r.key) for batch in batches for r in batch.requests]
        case PassResult():
            drew = [_name(each.key) for each in event.sampled]
            return "passed", (f"{service_id}/{event.pass_id}", *drew)
        case TokenBatch():
            return "tokens", _firsts(event, service_id)
        case WorkerReported(worker_id, EndForward(pass_id)):
            return "reported", (f"{worker_id}/{pass_id}",)
        case Handoff(key):
            return "handoff", (_name(key),)
        case KvOffered(header):
            return "offered", (_name(header.request.key), header.num_bytes)
        case KvArrived(key):
            return "arrived", (_name(key),)
    return None


def _name(key: Sequence[object]) -> str:
    return "/".join(map(str, key))


def _firsts(batch: TokenBatch, gateway_id: str) -> list[str]:
    """Return the streams whose first token this is."""
    entries = zip(batch.stream_ids, batch.indices, strict=True)
    return [_name((gateway_id, stream_id)) for stream_id, index in entries if not index]
