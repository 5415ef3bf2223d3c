"""A card's report: whole after each part, bounded in time, and plain about what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.card import report as reports
from bench.card.commands import run_within
from bench.card.report import CardReport
from bench.gpu import main
from headway.errors import HeadwayError


def read(file: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(file.read_text())
    return found


def test_every_figure_is_in_the_file_at_once_and_no_half_file_is_left(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    report = CardReport(file, minutes=1)
    report.add("rates", [1, 2])
    assert read(file)["rates"] == [1, 2]
    report.leave_out("demo", "no time left")
    assert read(file)["not_done"] == {"demo": "no time left"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_part_that_fails_is_named_and_the_next_one_runs(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    report = CardReport(file, minutes=1)
    with report.part("one"):
        raise RuntimeError("out of memory")
    with report.part("two"):
        report.add("two", 2)
    found = read(file)
    assert found["not_done"] == {"one": "RuntimeError: out of memory"}
    assert found["two"] == 2
    assert set(report.figures["part_seconds"]) == {"one", "two"}


def test_what_there_is_no_time_for_is_named() -> None:
    report = CardReport(None, minutes=0)
    assert not report.has_time("peer")
    assert not CardReport(None, minutes=1).has_time("profile", least=3600)
    assert "peer" in report.figures["not_done"]
    assert CardReport(None, minutes=1).has_time("engine")


def test_a_step_that_hangs_is_ended_and_its_report_says_where(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    program = (
        "import time; from pathlib import Path; from bench.card import report as r; "
        f"r.GRACE = 0.1; one = r.CardReport(Path({str(file)!r}), 0.001)\n"
        "with one.bounded(), one.part('hangs'): time.sleep(600)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == reports._HANGS
    assert read(file)["not_done"] == {"hangs": "it did not end within the limit and was stopped"}


def test_a_report_that_ends_in_time_stops_nobody() -> None:
    report = CardReport(None, minutes=1)
    with report.bounded():
        pass
    assert report.seconds_left > 0


def test_a_command_that_ends_well_says_nothing_and_one_that_fails_its_last_words(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    assert run_within([sys.executable, "-c", "print(1)"], 60, log) == ""
    said = run_within([sys.executable, "-c", "raise SystemExit('no card')"], 60, log)
    assert said == "exit 1: 1 / no card"


def test_a_command_beyond_its_limit_is_interrupted_as_by_a_person(tmp_path: Path) -> None:
    log, file = tmp_path / "log", tmp_path / "kept"
    program = (
        "import time\n"
        "try: time.sleep(600)\n"
        f"except KeyboardInterrupt: open({str(file)!r}, 'w').write('kept')"
    )
    for limit in (5, 20, 80):  # a slow machine has not begun the program within 5 s
        began_at = time.monotonic()
        assert "took over" in run_within([sys.executable, "-c", program], limit, log)
        assert time.monotonic() - began_at < 600
        if file.exists():
            break
    assert file.read_text() == "kept"


def test_a_limit_of_no_time_is_refused() -> None:
    with pytest.raises(HeadwayError, match="minutes"):
        main(["cluster", "--device", "cpu", "--shape", "tiny", "--minutes", "0.001"])
