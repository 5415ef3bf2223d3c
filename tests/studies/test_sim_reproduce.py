"""Every study runs from end to end, on few and short runs, and says what it measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from cli import main
from studies import bursts, composition, pascal, sbs, sbs_decode, star, tokenscale, uniboost
from studies.cells import requests
from studies.claims import Claim
from studies.dominance import cluster_of
from studies.runs import Job, run
from studies.systems import OURS, RIVALS, STAGES

pytestmark = pytest.mark.slow


def require_told(claims: list[Claim], num_claims: int) -> None:
    """Every row says against what it stands and what was asked; one that does not hold, why."""
    assert len(claims) == num_claims
    assert all(claim.note for claim in claims if not claim.holds)
    assert all(claim.against and claim.asked for claim in claims)


def test_sbs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbs, "NUM_REQUESTS", 30)
    monkeypatch.setattr(sbs, "NUM_WARM_UP", 20)
    few = {name: replace(s, num_requests=0) for name, s in sbs.SET_UPS.items()}
    monkeypatch.setattr(sbs, "SET_UPS", MappingProxyType(few))
    monkeypatch.setattr(sbs_decode, "NUM_PASSES", 12)
    monkeypatch.setattr(sbs_decode, "NUM_WARM_UP", 4)
    require_told(sbs.reproduce([1], 1), 55)


def test_star_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {name: replace(s, seconds=50.0) for name, s in star.SET_UPS.items()}
    monkeypatch.setattr(star, "SET_UPS", MappingProxyType(short))
    require_told(star.reproduce([1], 1), 22)


def test_pascal_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pascal, "NUM_REQUESTS", 40)
    require_told(pascal.reproduce([1], 1), 50)


def test_tokenscale_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(bursts.DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(bursts, "SECONDS", 1.5)
    require_told(tokenscale.reproduce([1], 1), 40)


def test_composition_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "CELL", replace(composition.CELL, seconds=8.0))
    require_told(composition.reproduce([1], 1), 19)


def test_a_run_of_a_study_is_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "CELL", replace(composition.CELL, seconds=8.0))
    job = Job(composition.SCENARIO, "headway", 6.0, 3, "1P+3D")
    assert composition.measure(job) == composition.measure(job)


def test_all_presets_serve_every_request_of_the_mixed_workload() -> None:
    cell = replace(composition.CELL, seconds=8.0)
    asked = list(requests(cell, 1, 6.0))
    for system in (*RIVALS, OURS, *STAGES):
        found = run(cluster_of(system, cell, "1P+2D+1C"), asked)
        assert sorted(r.num_tokens for r in found.records) == sorted(
            r.num_output_tokens for r in asked
        )


def test_the_rows_are_written_with_their_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="the extra analysis is not installed")
    monkeypatch.setattr(uniboost, "SECONDS", {False: 40.0, True: 40.0})
    monkeypatch.setattr(uniboost, "NUM_WARM_UP", 5)
    rows, plots = tmp_path / "rows.json", tmp_path / "plots"
    command = ["reproduce", "uniboost", "--seeds", "1", "--processes", "1"]
    assert main([*command, "--json", str(rows), "--plots", str(plots)]) == 0
    written = json.loads(rows.read_text())
    assert len(written) == 78
    assert {row["paper"] for row in written} == {"uniboost"}
    assert all(row["against"] and row["asked"] and (row["holds"] or row["note"]) for row in written)
    assert (plots / "claims-uniboost.svg").is_file()


def test_decisions_are_timed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert main(["bench", "policies", "--repeats", "1", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert {row["decision"] for row in rows} >= {"PBAA", "IQR-lex", "STAR, raw loads"}
    assert all(row["median_ms"] > 0 for row in rows)
