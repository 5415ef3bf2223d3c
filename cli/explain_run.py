"""A recorded run of the simulator, simulated again around one request."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cli.explain_what_if import ReplayedTimes
from headway.errors import Code, HeadwayError
from headway.life.record import LifeRecord
from headway.presets import find_preset, parse_choice
from headway.sim.clients import SimRequest
from headway.sim.experiment import cluster_spec, simulate
from headway.sim.records import Record
from headway.sim.scenario import Scenario, load_scenario
from headway.sim.views.run import require_views, simulate_views
from results.recording import MAKING

_BEFORE, _AFTER = 300.0, 60.0  # seconds around the request that are replayed
_MOST_BY_CORES = 2000  # requests that somebody at a terminal waits for


class SimulatedRun:
    """A recorded run of the simulator, which can be simulated again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _making(self) -> dict[str, Any]:
        """How the run was made; HeadwayError where its folder does not say."""
        path = self._folder / MAKING
        try:
            settings = json.loads(path.read_text("utf-8"))
            return dict(settings)
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
        record = next((each for each in records if each.request_id == life.request_id), None)
        workers = ", ".join(f"{n} {kind.role.value}" for kind, n in scenario.conditions.instances)
        return ReplayedTimes(
            None if record is None else record.ttft,
            None if record is None or not record.finished else record.ttlt,
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
        around: list[SimRequest] = []
        for each in workload.requests(made["seed"]):
            if each.arrival_at > end:
                break
            if each.arrival_at >= begin:
                around.append(each)
        same = (life.request_id, life.tokens.prompt)
        if not any((each.request_id, each.num_prompt_tokens) == same for each in around):
            message = "its scenario is not what it was: record the run again"
            raise HeadwayError(Code.NOT_FOUND, message)
        return around
