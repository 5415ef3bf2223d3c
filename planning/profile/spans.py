"""The cost of every hop of a request's way, from what each core heard and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any, NamedTuple

from headway.errors import Code, HeadwayError
from headway.sim.hop_costs import HopCosts
from planning.profile.live import Sent
from services.runtime.span_record import Heard

_HOPS = ("gateway", "submit", "dispatch", "token", "report")


@dataclass(frozen=True, slots=True)
class MeasuredHops:
    """Costs of hops; of messages between workers, s; of their links, bytes/s, 0 if none was sent.

    Each is the median over requests that met no other.
    """

    hops: HopCosts
    worker_latency: float
    link_bytes_per_s: float


@dataclass(slots=True)
class _Instants:
    """When each kind of event was first heard, by what it is about."""

    at: dict[str, dict[Any, float]] = field(default_factory=lambda: defaultdict(dict))
    key_of: dict[str, str] = field(default_factory=dict)
    drew_in: dict[str, str] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)

    def take(self, heard: Heard) -> None:
        """Note an event; repeats of one do not count."""
        at, kind, about = heard
        match kind, about:
            case "requested", (request_id, key):
                self.at[kind].setdefault(request_id, at)
                self.key_of.setdefault(request_id, key)
            case "passed", (name, *drew):
                self.at[kind].setdefault(name, at)
                for key in drew:
                    self.drew_in.setdefault(key, name)
            case "offered", (key, num_bytes):
                self.at[kind].setdefault(key, at)
                self.num_bytes.setdefault(key, num_bytes)
            case _:
                for name in about:
                    self.at[kind].setdefault(name, at)


class Span(NamedTuple):
    """One hop of one request: its name, when it began, s since the epoch, and its seconds."""

    hop: str
    began_at: float
    seconds: float


def measure_hops(heard: Iterable[Heard], sent: Sequence[Sent | None], cores: int) -> MeasuredHops:
    """Return the costs of hops; ``sent`` one by one, the last that the gateway was submitted.

    HeadwayError where the requests left no whole trace.
    """
    times = _Instants()
    for each in sorted(heard):
        times.take(each)
    spans: dict[str, list[float]] = defaultdict(list)
    for hop, _, seconds in _spans(times, sent):
        spans[hop].append(seconds)
    if len(spans) < len(_HOPS):
        message = "no request can be followed through all services: are their spans recorded?"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    costs = {name: max(0.0, median(values)) for name, values in spans.items()}
    return MeasuredHops(HopCosts(**costs, cores=cores), *_between_workers(times))


def spans_of(heard: Iterable[Heard], sent: Sequence[Sent | None]) -> Sequence[Span]:
    """Return the hops of all requests that can be followed through all services.

    Requests that overtake each other before the gateway swap their times, and sums stay the same.
    HeadwayError where one failed: who is who is not known then.
    """
    failed = sum(one is None for one in sent)
    times = _Instants()
    for each in sorted(heard):
        times.take(each)
    if failed or len(times.at["submitted"]) < len(sent):
        message = f"{failed} of {len(sent)} requests failed, and no hop can be measured: fit again"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    return list(_spans(times, sent))


def _spans(times: _Instants, sent: Sequence[Sent | None]) -> Iterator[Span]:
    at = times.at
    submitted = sorted(at["submitted"].items(), key=lambda item: item[1])[-len(sent) :]
    ordered = sorted(sent, key=lambda one: one.sent_at if one is not None else inf)
    for (request_id, submitted_at), one in zip(submitted, ordered, strict=True):
        key = times.key_of.get(request_id, "")
        name = times.drew_in.get(key, "")
        if one is None or name not in at["passed"] or key not in at["dispatched"]:
            continue
        requested_at, ended_at = at["requested"][request_id], at["passed"][name]
        instants = {
            "gateway": (one.sent_at, submitted_at),
            "submit": (submitted_at, requested_at),
            "dispatch": (requested_at, at["dispatched"][key]),
            "token": (ended_at, one.first_token_at),
        }
        if name in at["reported"]:
            instants["report"] = (ended_at, at["reported"][name])
        for hop, (began, ended) in instants.items():
            yield Span(hop, began, ended - began)


def _between_workers(times: _Instants) -> tuple[float, float]:
    at = times.at
    keys = [key for key in at["arrived"] if key in at["handoff"] and key in at["offered"]]
    if not keys:
        return 0.0, 0.0
    latency = median(at["offered"][key] - at["handoff"][key] for key in keys)
    seconds = sum(at["arrived"][key] - at["offered"][key] for key in keys)
    return max(0.0, latency), sum(times.num_bytes[key] for key in keys) / max(seconds, 1e-9)
