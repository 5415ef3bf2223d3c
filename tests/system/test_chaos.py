"""A short campaign of ``headway chaos`` on a cluster of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import main

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_handful_of_faults_breaks_no_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    flags = ("--for", "12s", "--seed", "7", "--rate", "0.8", "--log-dir", str(tmp_path / "run"))
    assert main(["chaos", *flags, "--json", str(report)]) == 0, capsys.readouterr().out
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["faults"]
    assert found["num_answers"] > 0
    assert not found["violations"]
