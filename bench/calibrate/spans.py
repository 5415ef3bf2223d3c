"""The cost of every hop of a request's way, from what each core heard and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.calibrate.live import Sent
from headway.errors import Code, HeadwayError
from headway.sim.hop_costs import HopCosts
from services.runtime.span_record import Heard


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


def measure_hops(heard: Iterable[Heard], sent: Sequence[Sent | None], cores: int) -> MeasuredHops:
    """Return the costs of hops; ``sent`` one by one, the last that the gateway was submitted.

    HeadwayError where the requests left no whole trace.
    """
    found = _Instants()
    for each in sorted(heard):
        found.take(each)
    at = found.at
    spans: dict[str, list[float]] = defaultdict(list)
    submitted = sorted(at["submitted"].items(), key=lambda item: item[1])[-len(sent) :]
    for (request_id, submitted_at), one in zip(submitted, sent, strict=True):
        key = found.key_of.get(request_id, "")
        name = found.drew_in.get(key, "")
        if one is None or name not in at["passed"] or key not in at["dispatched"]:
            continue
        requested_at, ended_at = at["requested"][request_id], at["passed"][name]
        spans["gateway"].append(submitted_at - one.sent_at)
        spans["submit"].append(requested_at - submitted_at)
        spans["dispatch"].append(at["dispatched"][key] - requested_at)
        spans["token"].append(one.first_token_at - ended_at)
        if name in at["reported"]:
            spans["report"].append(at["reported"][name] - ended_at)
    if len(spans) < 5:
        message = "no request can be followed through all services: are their spans recorded?"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    costs = {name: max(0.0, median(values)) for name, values in spans.items()}
    return MeasuredHops(HopCosts(**costs, cores=cores), *_between_workers(found))


def _between_workers(found: _Instants) -> tuple[float, float]:
    at = found.at
    keys = [key for key in at["arrived"] if key in at["handoff"] and key in at["offered"]]
    if not keys:
        return 0.0, 0.0
    latency = median(at["offered"][key] - at["handoff"][key] for key in keys)
    seconds = sum(at["arrived"][key] - at["offered"][key] for key in keys)
    return max(0.0, latency), sum(found.num_bytes[key] for key in keys) / max(seconds, 1e-9)
