"""The live services on virtual time: promises hold, and the same seed gives the same history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli import main
from headway.core.scheduler.state import SchedulerState
from proof.shells.history import run
from proof.vopr.campaign import SeedCampaign
from proof.vopr.draw import draw

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 17, 81])
def test_live_services_keep_every_promise_of_a_seed(seed: int) -> None:
    assert run(draw(seed)).violations == []


def test_the_same_seed_gives_the_same_log_line_by_line() -> None:
    first: list[str] = []
    second: list[str] = []
    histories = run(draw(4), first), run(draw(4), second)
    assert first == second
    assert len(first) > 1000
    assert histories[0].digest == histories[1].digest


def test_the_same_seed_gives_the_same_history_in_any_process() -> None:
    call = "from proof.shells import history; from proof.vopr import draw"
    call += "; print(history.run(draw.draw(24)).digest)"
    digests = {run(draw(24)).digest}
    for hash_seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", call],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(said.stdout.strip())
    assert len(digests) == 1


def test_the_command_runs_the_live_services(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vopr", "--shells", "--seed", "3"]) == 0
    assert run(draw(3)).digest in capsys.readouterr().out


@pytest.mark.timeout(600)
def test_a_bug_put_back_is_found_on_the_live_services(monkeypatch: pytest.MonkeyPatch) -> None:
    def says_nothing(self: SchedulerState, keys: Sequence[Any], reason: str, **named: Any) -> None:
        for key in keys:
            self.end(key)

    monkeypatch.setattr(SchedulerState, "lose", says_nothing)
    assert "faults are over" in run(draw(81)).violations[0]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_live_services_keep_every_promise_of_many_seeds() -> None:
    campaign = SeedCampaign.of_seeds(range(200), live=run)
    assert {h.scenario.seed: h.violations for h in campaign.run() if h.violations} == {}
