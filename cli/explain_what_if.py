"""The times that a request would have had under other policies: the minutes around it, replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from headway.console.measured import MEASURED
from headway.cost.profile import profile_names
from headway.errors import Code, HeadwayError, invalid
from headway.life.reasons import several
from headway.life.record import LifeRecord
from headway.presets import PRESETS, find_preset, parse_choice
from headway.sim.clients import SimRequest
from headway.sim.experiment import cluster_spec, simulate
from headway.sim.records import Record
from headway.sim.scenario import Scenario, load_scenario
from headway.sim.views.run import require_views, simulate_views
from results.recording import MAKING

USUAL = "vllm-like,headway"
"""The presets that are replayed where nobody names others."""
PATH = "/console/what-if"
_BEFORE, _AFTER = 300.0, 60.0  # seconds around the request that are replayed
_FAR = 1.0  # seconds over its replay, and over twice that, of a request that something else held up
_MOST_BY_CORES = 2000  # requests that somebody at a terminal waits for


class ReplayedTimes(NamedTuple):
    """A request's times in a replay, in seconds; None for what did not happen."""

    ttft: float | None
    total: float | None
    num_requests: int
    workers: str
    preset: str


Replays = Callable[[LifeRecord, str], ReplayedTimes]
"""Replays a request with a preset, "" for its own; HeadwayError says why that cannot be."""


def parse_presets(text: str) -> Sequence[str]:
    """Return the presets of ``--what-if``; INVALID_ARGUMENT for an unknown one."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        if name not in PRESETS:
            raise invalid("--what-if", name, f"presets by comma: {', '.join(PRESETS)}")
    return found


def require_profile(name: str) -> None:
    """Raise INVALID_ARGUMENT unless a profile of this name is shipped, or none is named."""
    if name and name not in profile_names():
        raise invalid("--profile", name, f"one of {', '.join(profile_names())}")


def told(life: LifeRecord, presets: Sequence[str], replay: Replays) -> Iterator[str]:
    """Yield the lines: as recorded, simulated as it ran, and with every preset."""
    yield "what another policy would have done:"
    if life.instants.end is None:
        yield "  it has not ended: ask again when it has"
        return
    yield _line("as recorded", life.ttft, life.total / 1e6)
    try:
        own = replay(life, "")
    except HeadwayError as error:
        yield f"  it cannot be replayed: {error.message}"
        return
    yield _line(f"{own.preset}, as it ran, simulated", own.ttft, own.total)
    if own.total is not None and life.total / 1e6 > own.total + max(_FAR, own.total):
        yield "  (the simulator does not know what held it up: a start, a fault, a slow host)"
    for preset in dict.fromkeys(presets):
        if preset == own.preset:
            continue
        try:
            found = replay(life, preset)
        except HeadwayError as error:
            yield f"  {preset}: it cannot be replayed: {error.message}"
        else:
            yield _line(f"{preset}, simulated", found.ttft, found.total)
    around = several(own.num_requests, "request")
    yield f"  ({around} around it on {own.workers}; compare simulated times)"


def _line(name: str, ttft: float | None, total: float | None) -> str:
    if total is None:
        seen = "it gets no token" if ttft is None else f"TTFT {ttft:.3f} s, and it never ends"
        return f"  {name:<34} {seen}"
    return f"  {name:<34} TTFT {_seconds(ttft)}, whole {_seconds(total)}"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f} s"


def read_times(answer: Any) -> ReplayedTimes:
    """Return what a gateway answered; UNAVAILABLE for what no gateway of this version says."""
    try:
        found = answer["request"]["replayed"]
        workers = ", ".join(f"{number} {role}" for role, number in answer["workers"].items())
        return ReplayedTimes(
            found["ttft"],
            found["total"],
            int(answer["num_requests"]),
            f"{workers}, nothing cached, costs {_source(str(answer['profile']))}",
            str(answer["preset"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        message = f"the gateway's replay cannot be read ({error!r}): it has another version"
        raise HeadwayError(Code.UNAVAILABLE, message) from error


def _source(profile: str) -> str:
    is_measured = profile == MEASURED
    return "as the workers have measured them" if is_measured else f"of the profile {profile}"


class SimulatedRun:
    """A recorded run of the simulator, which can be simulated again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _making(self) -> dict[str, Any]:
        """How the run was made; HeadwayError where its folder does not say."""
        path = self._folder / MAKING
        try:
            found = json.loads(path.read_text("utf-8"))
            return dict(found)
        except (OSError, ValueError, TypeError) as error:
            message = f"{path} does not say how the run was made ({error}): record it again"
            raise HeadwayError(Code.NOT_FOUND, message) from error

    @cached_property
    def _scenario(self) -> Scenario:
        made = self._making
        return load_scenario(
            made["scenario"],
            made["profile"],
            hops=made["hops"],
            autoscales=made["autoscales"],
            planner=made.get("planner", ""),
        )

    def replay(self, life: LifeRecord, preset: str) -> ReplayedTimes:
        """Simulate the minutes around a request with a preset, "" for the run's own."""
        made, scenario = self._making, self._scenario
        choice = parse_choice(*(("", "") if preset else (made["policy"], made["set"])))
        name = preset or made["preset"]
        spec = cluster_spec(find_preset(name), scenario.conditions.but(*choice))
        requests = self._around(life)
        records: list[Record] = []
        try:
            require_views(spec, scenario.failures)
        except HeadwayError as error:
            if len(requests) > _MOST_BY_CORES:
                message = f"{len(requests)} requests are too many for the cores' fidelity"
                raise HeadwayError(error.code, f"{message}, and {error.message}") from error
            simulate(spec, requests, ended=records.append, failures=scenario.failures)
        else:
            simulate_views(spec, requests, ended=records.append)
        found = next((each for each in records if each.request_id == life.request_id), None)
        workers = ", ".join(f"{n} {kind.role.value}" for kind, n in scenario.conditions.instances)
        return ReplayedTimes(
            None if found is None else found.ttft,
            None if found is None or not found.finished else found.ttlt,
            len(requests),
            workers,
            name,
        )

    def _around(self, life: LifeRecord) -> list[SimRequest]:
        """Return the run's requests around one; NOT_FOUND where the scenario has other ones now."""
        made, workload = self._making, self._scenario.workload
        if made["rate"] is not None:
            workload = replace(workload, rate=made["rate"])
        begin, end = life.arrival_at - _BEFORE, life.arrival_at + life.total / 1e6 + _AFTER
        found: list[SimRequest] = []
        for each in workload.requests(made["seed"]):
            if each.arrival_at > end:
                break
            if each.arrival_at >= begin:
                found.append(each)
        same = (life.request_id, life.tokens.prompt)
        if not any((each.request_id, each.num_prompt_tokens) == same for each in found):
            message = "its scenario is not what it was: record the run again"
            raise HeadwayError(Code.NOT_FOUND, message)
        return found
