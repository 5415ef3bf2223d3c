"""``headway profile`` on runs that were kept: nothing is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cli import main
from headway.cost.fit import MeasuredPass
from planning.profile.cases import TOPOLOGIES, chosen
from planning.profile.figures import Load, Seen
from planning.profile.live import (
    PASSES,
    SPANS,
    LiveDeployment,
    LiveEngine,
    LiveLoad,
    LiveModel,
    Sent,
    keep,
    note_asked,
)
from planning.profile.loads import SPREAD, TOGETHER, at_once, drawn, one_by_one, poisson
from planning.profile.predict import predict
from services.local.options import WorkerCounts
from services.runtime.rooms import model_folder
from services.runtime.span_record import SUFFIX
from tests.fakes.true_machine import WORKER, asked, calibration

MINI = model_folder("headway-mini")
SPLIT = WorkerCounts(1, 1)
CASE = "vllm-like/1P1D/20%"
CAPACITY = 50.0


def write_passes(folder: Path, passes: Sequence[MeasuredPass], factor: float = 1.0) -> None:
    folder.mkdir(parents=True)
    lines: list[dict[str, object]] = [{"worker": WORKER}]
    for number, each in enumerate(passes):
        share, seconds = each.share._asdict(), factor * each.seconds
        lines.append({"seconds": seconds, "began_at": float(number), "share": share})
    text = "\n".join(json.dumps(line) for line in lines)
    (folder / "w.jsonl").write_text(text + "\n", "utf-8")


def write_spans(folder: Path, sent: Sequence[Sent]) -> None:
    """Every hop takes a millisecond, and the pass ten."""
    folder.mkdir(parents=True)
    lines = []
    for number, one in enumerate(sent):
        key, name = f"gateway/{number}", f"w/{number}"
        for milliseconds, kind, about in (
            (1, "submitted", [str(number)]),
            (2, "requested", [str(number), key]),
            (3, "dispatched", [key]),
            (13, "passed", [name, key]),
            (14, "reported", [name]),
        ):
            lines.append(json.dumps([one.sent_at + milliseconds / 1000, kind, about]))
    (folder / f"all.{SUFFIX}").write_text("\n".join(lines) + "\n", "utf-8")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Sequence[MeasuredPass]:
    return asked(one_by_one(0.5, 40, 0), monkeypatch)[1].passes


def kept_load(seen: Load, sent: Sequence[Sent] = ()) -> LiveLoad:
    return LiveLoad(seen, sent, 0, 0.0)


def test_a_fit_writes_what_it_measured_and_says_how_sure_it_is(
    tmp_path: Path, passes: Sequence[MeasuredPass], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "mine.toml"
    sent = [Sent(100.0 + number, 100.014 + number) for number in range(9)]
    rows = drawn(TOGETHER, 0)
    for name, topology, asked_for, factor in (
        ("lone", SPLIT, one_by_one(0.5, 40, 0), 1.0),
        ("learning", WorkerCounts(0, 0, unified=1), drawn(SPREAD, 0), 1.0),
        ("together-1", SPLIT, rows, 1.0),
        ("together-2", WorkerCounts(1, 2), rows, 1.3),
    ):
        folder = runs / name
        note_asked(LiveDeployment(LiveModel(MINI), "vllm-like", topology), asked_for, folder)
        write_passes(folder / PASSES, passes, factor)
        keep(kept_load([Seen(0.014, None, 0.014)] * len(sent), sent), folder)
        write_spans(folder / SPANS, sent)
    assert main(["profile", "run", "--out", str(out), "--keep", str(runs)]) == 0
    said = capsys.readouterr().out
    assert "per_prefill_token" in said
    assert "V_D S-S" in said
    assert "a convertible chunk of" in said
    assert "gateway 1.00 ms, submit 1.00 ms, dispatch 1.00 ms, report 1.00 ms" in said
    assert "alone and side by side, took 0.9" in said
    assert "measure again" in said
    assert {path.name for path in tmp_path.iterdir()} >= {
        "mine.toml",
        "mine.hops.toml",
        "mine.passes.json",
    }


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.2, 1)])
def test_a_check_fails_where_the_level_moved(
    tmp_path: Path,
    passes: Sequence[MeasuredPass],
    capsys: pytest.CaptureFixture[str],
    factor: float,
    status: int,
) -> None:
    runs, profile, table = tmp_path / "runs", tmp_path / "mine.toml", tmp_path / "table.json"
    machine = calibration()
    machine.save(profile)
    (case,) = chosen([CASE])
    rows = case.rows(CAPACITY, 20, 1)
    live = predict(machine, "vllm-like", TOPOLOGIES["1P1D"], rows, level=factor).loads[0]
    crowd = [Seen(1.0, 0.1, 3.0, 3.0)] * 150
    for folder, seen in (
        (runs / "capacity" / "1P1D-150-60", crowd),
        *((runs / CASE / str(number), live) for number in (1, 2)),
    ):
        deployment = LiveDeployment(LiveModel(MINI), "vllm-like", TOPOLOGIES["1P1D"])
        is_crowd = "capacity" in folder.parts
        note_asked(deployment, at_once(poisson(1.0, 150, 1)) if is_crowd else rows, folder)
        write_passes(folder / PASSES, passes, factor)
        keep(kept_load(seen), folder)
    asked_for = ["--cases", CASE, "--repeats", "2", "--num-requests", "20", "--keep", str(runs)]
    called = ["profile", "check", "--profile", str(profile), *asked_for, "--json", str(table)]
    assert main(called) == status
    said = capsys.readouterr().out
    assert ("void" in said.lower()) is bool(status)
    assert "live to live" in said
    found = json.loads(table.read_text())
    assert [each["is_void"] for each in found["cases"][0]["repeats"]] == [bool(status)] * 2
    assert len(found["overall"]) == 5


@pytest.mark.parametrize(
    ("engine", "cases", "served"), [("torch", "3P/1D", "1P1D"), ("vllm-native", "*/1P1D/*", "2U")]
)
def test_a_case_that_there_is_not_or_that_the_engine_cannot_serve_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, cases: str, served: str
) -> None:
    profile = tmp_path / "mine.toml"
    replace(calibration(), engine=LiveEngine(engine)).save(profile)
    assert main(["profile", "check", "--profile", str(profile), "--cases", cases]) == 2
    assert f"topologies {served}" in capsys.readouterr().err


def test_every_ready_made_profile_tells_where_it_is_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["profile", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 10
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
