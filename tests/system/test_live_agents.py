"""``headway bench agents`` on real clusters: one of two workers, and two behind the proxy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import main

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]


def test_sessions_run_side_by_side_and_the_leader_may_die(tmp_path: Path) -> None:
    file = tmp_path / "agents.json"
    flags = ("--compare", "headway,hashed", "--unified", "2", "--log-dir", str(tmp_path / "logs"))
    sizes = ("--sessions", "3", "--turns", "4", "--output-tokens", "20", "--pause", "0.5")
    assert main(["bench", "agents", *flags, *sizes, "--kill-leader", "1", "--json", str(file)]) == 0
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    assert [run["system"] for run in runs] == ["headway", "hashed"]
    whole, hashed = runs
    for run in (whole, hashed):
        assert (run["figures"]["num_turns"], run["figures"]["num_failed"]) == (12, 0)
    assert hashed["figures"]["cached"] > 0.5
    assert whole["killed_at"] == 1.0
    assert hashed["killed_at"] is None
