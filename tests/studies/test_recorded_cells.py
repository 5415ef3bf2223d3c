"""Cells with recorded arrivals, in the studies of dominance and of traces, and a scaled fleet."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

import pytest

from headway.sim.spec import Autoscaling
from studies import cells, dominance, traces, warm
from studies.bursts import DATA_VARIABLE
from studies.recorded import MOONCAKE, SERVEGEN, TraceFiles
from studies.runs import Job
from studies.systems import PLAIN

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
RECORDED = [name for name, cell in cells.CELLS.items() if cell.trace is not None]
SCALED = [name for name, cell in cells.CELLS.items() if cell.scaling is not None]


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has a trace in Azure's format, an arrival a second, and nothing else."""
    rows = [f"2023-11-16 18:{n // 60:02}:{n % 60:02}.0,{100 + n},{10 + n % 7}" for n in range(90)]
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]
    (tmp_path / "azure_llm_2023_conv.csv").write_text("\n".join(lines))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    return tmp_path


PLAIN_FILE = TraceFiles(("azure_llm_2023_conv.csv",))
CHATS = replace(cells.CHATS, trace=PLAIN_FILE, seconds=10.0)


@pytest.mark.usefixtures("azure")
def test_the_seed_chooses_a_window_that_runs_at_the_rate() -> None:
    drawn = list(cells.requests(CHATS, 101, 2.0))
    assert drawn == list(cells.requests(CHATS, 101, 2.0))
    assert len(drawn) == 20
    assert drawn[0].arrival_at == 0.0
    assert drawn[-1].arrival_at == pytest.approx(19 / 2.0)
    assert not any(each.num_reasoning_tokens for each in drawn)
    assert drawn != list(cells.requests(CHATS, 102, 2.0))


@pytest.mark.usefixtures("azure")
def test_a_share_of_a_traces_requests_thinks_before_the_recorded_output() -> None:
    plain = list(cells.requests(replace(CHATS, seconds=40.0), 3, 2.0))
    thinking = list(cells.requests(replace(CHATS, seconds=40.0, reasons=0.5), 3, 2.0))
    assert [each.num_prompt_tokens for each in plain] == [
        each.num_prompt_tokens for each in thinking
    ]
    for before, after in zip(plain, thinking, strict=True):
        answer = after.num_output_tokens - after.num_reasoning_tokens
        assert answer == before.num_output_tokens
        assert after.request_id.startswith("reasoning-") == (after.num_reasoning_tokens > 0)
    assert 0.3 < sum(each.num_reasoning_tokens > 0 for each in thinking) / 80 < 0.7


def test_a_long_prompt_has_longer_for_its_first_token() -> None:
    assert MOONCAKE.allowed(4096) == 0.0
    assert MOONCAKE.allowed(14_096) == pytest.approx(1.0)


@pytest.mark.usefixtures("azure")
def test_a_cell_without_its_trace_is_named_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert not set(dominance.present("p", cells.CELLS)) & set(RECORDED)
    told = capsys.readouterr().err
    assert all(f"p: {name} is left out" in told for name in RECORDED)


@pytest.mark.usefixtures("azure")
@pytest.mark.parametrize("system", dominance.systems_of(cells.CELLS[SCALED[0]]))
def test_every_system_serves_a_trace_and_is_scaled_by_the_same_policy(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = replace(CHATS, scaling=Autoscaling(max_prefill=2, max_decode=3), initial="1P+1D")
    monkeypatch.setattr(dominance, "CELLS", MappingProxyType({"scaled": scaled}))
    scaling = dominance.cluster_of(system, scaled, "1P+1D").scaling
    assert scaling is not None
    assert scaling.name == "tokenscale"
    assert scaling.params["max_decode"] == 3
    job = Job("scaled", system, 2.0, 7, "1P+1D")
    row = dominance.measure(job)
    assert row == dominance.measure(job)
    assert 0.0 <= row["attainment"] <= 1.0
    assert row["gpus"] >= 2.0


@pytest.mark.usefixtures("azure")
def test_a_scaled_cell_has_its_row_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(cells.CELLS[SCALED[0]], seconds=2.0)
    monkeypatch.setattr(dominance, "CELLS", MappingProxyType({"scaled": few}))
    claims = dominance.reproduce([1], 1)
    gpus = [claim for claim in claims if "mean GPUs" in claim.claim]
    assert [claim.scenario for claim in gpus] == ["scaled; GPUs"]
    assert gpus[0].baseline >= 2.0
    assert all(claim.against for claim in claims if "preemptions" not in claim.claim)


@pytest.mark.usefixtures("azure")
def test_every_system_has_its_own_best_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(CHATS, seconds=8.0)
    recorded = MappingProxyType({"trace": few})
    monkeypatch.setattr(dominance, "CELLS", recorded)
    monkeypatch.setattr(traces, "RECORDED", recorded)
    monkeypatch.setattr(traces, "RATES", {"trace": 2.0})
    first, *_ = traces.reproduce([1], 1)
    assert (first.paper, first.against) == ("traces", PLAIN)
    for system in dominance.SYSTEMS:
        assert any(f"({topology})" in first.note for topology in few.set_ups)
        assert f"{system} " in first.note


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded traces (shared/data) are not here")
@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_cell_has_its_requests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    cell = cells.CELLS[name]
    drawn = list(cells.requests(replace(cell, seconds=40.0), 101, 1.0))
    assert 30 <= len(drawn) <= 50
    assert [each.arrival_at for each in drawn] == sorted(each.arrival_at for each in drawn)
    assert len(drawn) / drawn[-1].arrival_at == pytest.approx(1.0, rel=0.2)


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded traces (shared/data) are not here")
@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_cell_is_long_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    monkeypatch.setattr(warm, "NUM_RESIDENCES", 10.0)
    cell = cells.CELLS[name]
    for seed, rate in product((101, 102), (0.15, 0.4)):
        drawn = list(cells.requests(cell, seed, rate * cell.num_instances))
        warm.require_warm(dominance.cluster_of(PLAIN, cell, cell.topologies[0]), drawn)


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded traces (shared/data) are not here")
def test_servegens_windows_are_drawn_anew_by_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    one, other = (list(SERVEGEN.rows(1.0, 30, random.Random(seed))) for seed in (1, 2))
    assert one != other
    assert all(row.reasoning_tokens for row in one)
