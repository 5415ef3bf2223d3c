"""A trace is what Perfetto takes: whole numbers, slices that nest, arrows between stays."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

from cli import main
from headway.life.trace import REQUESTS_PID, trace_of
from headway.sim.experiment import simulate
from tests.fakes.sim_clusters import disaggregated, poisson


def simulated() -> list[dict[str, Any]]:
    run = simulate(disaggregated(2, 2), poisson(40, 10.0, 3), keeps_lives=True)
    trace = json.loads(json.dumps(trace_of(run.lives)))
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def test_every_number_is_whole_and_every_track_has_a_name() -> None:
    events = simulated()
    for event in events:
        assert all(type(event[name]) is int for name in ("pid", "tid"))
        assert event["ph"] == "M" or (type(event["ts"]) is int and event["ts"] >= 0)
        assert event["ph"] != "X" or (type(event["dur"]) is int and event["dur"] > 0)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"requests", "prefill-1", "prefill-2", "decode-3", "decode-4"}
    assert sum(e["name"] == "thread_name" for e in events) == 40


def test_slices_of_a_track_nest() -> None:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in simulated():
        if event["ph"] == "X":
            track = tracks[event["pid"], event["tid"]]
            track.append((event["ts"], -(event["ts"] + event["dur"])))
    for slices in tracks.values():
        ends: list[int] = []
        for begin, minus_end in sorted(slices):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or -minus_end <= ends[-1]
            ends.append(-minus_end)


def test_arrows_lead_from_a_stay_to_the_next() -> None:
    events = simulated()
    stays = [e for e in events if e.get("cat") == "stay"]
    begun = {e["id"]: e for e in events if e["ph"] == "s"}
    ended = {e["id"]: e for e in events if e["ph"] == "f"}
    assert begun.keys() == ended.keys()
    assert len(begun) == len(stays) - 40 > 0
    for number, begin in begun.items():
        end = ended[number]
        assert begin["pid"] != end["pid"] != REQUESTS_PID
        assert begin["ts"] <= end["ts"]
        for each in (begin, end):
            track = [s for s in stays if (s["pid"], s["tid"]) == (each["pid"], each["tid"])]
            assert any(s["ts"] <= each["ts"] <= s["ts"] + s["dur"] for s in track)


def test_no_lives_are_an_empty_trace() -> None:
    assert [e["ph"] for e in trace_of(())["traceEvents"]] == ["M"]


def test_a_simulation_writes_one(tmp_path: Path) -> None:
    ready_made = resources.files("headway") / "scenarios" / "sbs-prefill.toml"
    scenario = tmp_path / "s.toml"
    scenario.write_text(ready_made.read_text().replace("num_requests = 1500", "num_requests = 20"))
    file = tmp_path / "trace.json"
    flags = ["--preset", "sbs", "--processes", "1", "--trace", str(file)]
    assert main(["simulate", str(scenario), *flags]) == 0
    assert len(json.loads(file.read_text())["traceEvents"]) > 10
