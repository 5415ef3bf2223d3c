"""``python -m planning.what_if``: recorded requests on other instances or by other policies.

One JSON object comes in on standard input and one goes out. The fast fidelity is taken where the
preset allows it, else the cores simulate, and the answer says which.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from headway.cluster import Role
from headway.console import measured
from headway.console.measured import MEASURED
from headway.cost.profile import load_profile
from headway.cost.schema import Profile
from headway.errors import Code, HeadwayError, invalid
from headway.presets import find_preset, parse_choice
from headway.service_class import ServiceClass, Standing
from headway.sim.clients import SimRequest
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.records import Record
from headway.sim.spec import ClusterSpec
from headway.sim.views.run import require_views, simulate_views
from headway.sim.worker import InstanceSpec

MOST_REQUESTS = 20_000
MOST_WORKERS = 64
BIN = 10.0
"""Seconds of a point of a curve."""
CORES, POLICIES = "cores", "policies"


class RecordedRequest(NamedTuple):
    """A request as a gateway has recorded it; ``arrival`` in seconds from the first one's."""

    arrival: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_reasoning_tokens: int
    service_class: str
    is_kept: bool | None
    ttft: float | None
    total: float | None = None
    """Seconds from its arrival to its end."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A question: the load, the instances by role, and the policies."""

    requests: Sequence[RecordedRequest]
    classes: Mapping[str, ServiceClass]
    ttft: float
    """The promise of requests without a class, seconds to the first token."""
    profile: str
    workers: Mapping[Role, int]
    preset: str
    policy: str = ""
    settings: str = ""
    marked: int | None = None
    """The place of a request whose own times are asked for."""
    measured: Mapping[Role, Profile] = field(default_factory=dict)
    """Costs that the instances of each role have measured, which stand for the profile's."""
    most_by_cores: int = MOST_REQUESTS
    """Most requests of a replay that the fast fidelity does not have."""

    @classmethod
    def read(cls, asked: Mapping[str, Any]) -> WhatIf:
        """Return what a JSON object asks for; HeadwayError for what it lacks or has wrong."""
        try:
            listed = (RecordedRequest(*each) for each in asked["requests"])
            requests = sorted(listed, key=attrgetter("arrival"))
            workers = {Role(role): int(n) for role, n in asked["workers"].items() if int(n)}
            classes = {
                name: ServiceClass(name, **promise) for name, promise in asked["classes"].items()
            }
            texts = {name: str(asked[name]) for name in ("profile", "preset", "policy", "settings")}
            what_if = cls(
                requests,
                classes,
                float(asked["ttft"]),
                texts["profile"],
                workers,
                texts["preset"],
                texts["policy"],
                texts["settings"],
                None if asked.get("marked") is None else int(asked["marked"]),
                measured.unpacked(asked.get("measured") or {}),
                int(asked.get("most_by_cores", MOST_REQUESTS)),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            message = f"this is no replay ({error!r})"
            raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
        if not 0 < len(requests) <= MOST_REQUESTS:
            raise invalid("requests", len(requests), f"from 1 to {MOST_REQUESTS}")
        if not workers or min(workers.values()) < 1 or sum(workers.values()) > MOST_WORKERS:
            raise invalid("workers", dict(asked["workers"]), f"from 1 to {MOST_WORKERS} together")
        if what_if.marked is not None and not 0 <= what_if.marked < len(requests):
            raise invalid("marked", what_if.marked, f"from 0 to {len(requests) - 1}")
        return what_if

    def spec(self) -> ClusterSpec:
        """Return the cluster."""
        instances = [
            (InstanceSpec(role, self._costs_of(role)), count)
            for role, count in self.workers.items()
        ]
        conditions = Conditions(instances).but(*parse_choice(self.policy, self.settings))
        return cluster_spec(find_preset(self.preset), conditions)

    def _costs_of(self, role: Role) -> Profile:
        if role in self.measured:
            return self.measured[role]
        if not self.profile:
            message = "a replay needs the costs of an instance: name a profile"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="profile")
        return load_profile(self.profile)

    def needs_cores(self, spec: ClusterSpec) -> bool:
        """Return whether only the cores simulate this; HeadwayError if that takes too long."""
        try:
            require_views(spec)
        except HeadwayError as error:
            if error.param != "fidelity":
                raise
            if len(self.requests) > self.most_by_cores:
                message = f"{len(self.requests)} requests are too many for the cores' fidelity"
                raise HeadwayError(error.code, f"{message}, and {error.message}") from error
            return True
        return False

    def simulated(self) -> list[SimRequest]:
        """Return the recorded requests as clients of the simulator."""
        return [
            SimRequest(
                str(place),
                each.arrival,
                max(each.num_prompt_tokens, 1),
                max(each.num_output_tokens, 1),
                min(each.num_reasoning_tokens, max(each.num_output_tokens - 1, 0)),
                standing=Standing(service=self.classes.get(each.service_class)),
            )
            for place, each in enumerate(self.requests)
        ]

    def is_kept(self, place: int, latencies: Mapping[str, float | None]) -> bool | None:
        """Return whether the promise to a request is kept; None where it has no such figure."""
        service = self.classes.get(self.requests[place].service_class)
        if service is None:
            ttft = latencies["ttft"]
            return None if ttft is None else ttft <= self.ttft
        kept = service.kept(latencies)
        return all(kept.values()) if kept else None


def replay(asked: WhatIf) -> dict[str, Any]:
    """Simulate, and return both curves of promises kept and both medians and tails of TTFT."""
    spec, began = asked.spec(), time.perf_counter()
    fidelity, records = _simulated(asked, spec)
    replayed: list[tuple[float, bool | None, float | None]] = []
    for record in records:
        latencies = {
            "ttft": record.ttft,
            "ttfat": record.ttfat,
            "tpot": record.tpot,
            "e2e": record.ttlt,
        }
        kept = asked.is_kept(int(record.request_id), latencies) if record.finished else False
        replayed.append((record.arrival_at, kept, record.ttft))
    ended = {int(record.request_id) for record in records}
    missing = (place for place in range(len(asked.requests)) if place not in ended)
    replayed += [(asked.requests[place].arrival, False, None) for place in missing]  # never ended
    recorded = [
        (each.arrival, _recorded_kept(asked, place), each.ttft)
        for place, each in enumerate(asked.requests)
    ]
    return {
        "fidelity": fidelity,
        "seconds": time.perf_counter() - began,
        "num_requests": len(asked.requests),
        "profile": MEASURED if asked.measured else asked.profile,
        "bin": BIN,
        "recorded": _figures(recorded),
        "replayed": _figures(replayed),
        **_marked(asked, records),
    }


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a replay, with its control where the question has one.

    The control is what the record ran with, replayed, and what a replay is to be compared with: a
    record has what the simulator does not know. Where it cannot be replayed it is a text that says
    why.
    """
    asked = WhatIf.read(question)
    reply = replay(asked)
    if control := question.get("control"):
        try:
            own = WhatIf.read({**question, **control})
            reply["control"] = reply["replayed"] if own == asked else replay(own)["replayed"]
        except HeadwayError as error:
            reply["control"] = error.message
    return reply


def _simulated(asked: WhatIf, spec: ClusterSpec) -> tuple[str, list[Record]]:
    """Return the fidelity that a replay needed, and its requests.

    The fast fidelity gives up where memory is short and the order says who yields. With little
    memory requests may be lost there that the cores serve.
    """
    records: list[Record] = []
    is_small = len(asked.requests) <= asked.most_by_cores
    if not asked.needs_cores(spec):
        try:
            simulate_views(spec, asked.simulated(), ended=records.append)
        except HeadwayError as error:
            if error.param != "fidelity" or not is_small:
                raise
        else:
            if all(each.finished for each in records) or not is_small:
                return POLICIES, records
        records.clear()
    simulate(spec, asked.simulated(), ended=records.append)
    return CORES, records


def _marked(asked: WhatIf, records: Iterable[Record]) -> dict[str, Any]:
    """Return the times of the one request that is asked about, in seconds; {} for none."""
    if asked.marked is None:
        return {}
    was, name = asked.requests[asked.marked], str(asked.marked)
    becomes = next((each for each in records if each.request_id == name), None)
    return {
        "request": {
            "recorded": {"ttft": was.ttft, "total": was.total},
            "replayed": {
                "ttft": None if becomes is None else becomes.ttft,
                "total": None if becomes is None or not becomes.finished else becomes.ttlt,
            },
        },
        "preset": asked.preset,
        "workers": {role.value: number for role, number in asked.workers.items()},
    }


def _recorded_kept(asked: WhatIf, place: int) -> bool | None:
    each = asked.requests[place]
    if each.service_class in asked.classes:
        return each.is_kept
    return None if each.ttft is None else each.ttft <= asked.ttft


def _figures(latencies: Iterable[tuple[float, bool | None, float | None]]) -> dict[str, Any]:
    """Return the share of kept promises by arrival, and the spread of TTFT."""
    bins: dict[int, list[bool]] = {}
    times: list[float] = []
    for arrival, kept, ttft in latencies:
        if kept is not None:
            bins.setdefault(int(arrival // BIN), []).append(kept)
        if ttft is not None:
            times.append(ttft)
    times.sort()
    every = [kept for each_bin in bins.values() for kept in each_bin]
    return {
        "curve": [[place * BIN, sum(bins[place]) / len(bins[place])] for place in sorted(bins)],
        "kept": sum(every) / len(every) if every else None,
        "ttft_p50": times[len(times) // 2] if times else None,
        "ttft_p99": times[min(int(0.99 * len(times)), len(times) - 1)] if times else None,
    }


def main() -> int:
    """Read a replay, and write what comes of it, or why it cannot be."""
    try:
        reply = answer(json.load(sys.stdin))
    except HeadwayError as error:
        reply = {"error": error.message, "code": error.code.value}
    except ValueError as error:
        reply = {"error": f"this is no JSON: {error}", "code": Code.INVALID_ARGUMENT.value}
    json.dump(reply, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
