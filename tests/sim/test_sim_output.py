"""What a run leaves: statistics in constant memory, Parquet, plots."""

from __future__ import annotations

import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import main
from headway.class_metrics import ServedRequest
from headway.cluster import UnitId
from headway.metrics import Spread, percentile
from headway.presets import PRESETS
from headway.sim import summary
from headway.sim.experiment import cluster_spec, simulate
from headway.sim.sampling import Sample
from headway.sim.scenario import parse_scenario
from headway.sim.summary import RELATIVE_ERROR, Digest, ManyValues, Summary, summarise
from studies import bursts, tokenscale

SMALL = """
[[instances]]
role = "unified"
count = 2
profile = "llama-8b-a100"
[workload]
rate = 6.0
num_requests = 80
[[workload.classes]]
name = "chat"
prompt = { distribution = "exponential", mean = 200 }
answer = { distribution = "uniform", low = 5, high = 60 }
[slo]
ttft = 0.1
"""


@given(values=st.lists(st.floats(1e-6, 1e6), min_size=1), share=st.floats(0, 1))
def test_a_digests_percentiles_are_those_of_the_values_within_half_a_percent(
    values: list[float], share: float
) -> None:
    digest = Digest()
    for value in values:
        digest.add(value)
    ordered = sorted(values)
    rank = int(share * (len(ordered) - 1))
    found = digest.percentile(share)
    assert found == pytest.approx(ordered[rank], rel=1.01 * RELATIVE_ERROR)
    assert digest.mean == pytest.approx(sum(values) / len(values))


def test_percentiles_are_exact_until_there_are_too_many_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "_MOST_KEPT", 50)
    rng, values, added = random.Random(1), ManyValues(), list[float]()
    for number in range(1, 201):
        added.append(rng.expovariate(1.0))
        values.add(added[-1])
        if number <= 50:
            assert values.spread() == Spread.of(added)
    found, exact = values.spread(), Spread.of(added)
    assert found is not None
    assert exact is not None
    assert found.mean == pytest.approx(exact.mean)
    ordered = sorted(added)
    assert found.p90 == pytest.approx(ordered[int(0.9 * 199)], rel=1.01 * RELATIVE_ERROR)


def test_streamed_figures_are_those_of_kept_records() -> None:
    scenario = parse_scenario(SMALL, "test")
    spec = cluster_spec(PRESETS["vllm-like"], scenario.conditions)
    kept = simulate(spec, scenario.workload.requests(1))
    expected = summarise(kept, scenario.slo)
    streamed = Summary(scenario.slo, new_values=Digest)
    run = simulate(spec, scenario.workload.requests(1), ended=streamed.ended)
    assert run.records == []
    found = streamed.row(run)
    assert found.keys() == expected.keys()
    for name in ("ttft_mean", "attainment", "goodput", "num_finished", "tokens_per_s"):
        assert found[name] == pytest.approx(expected[name])
    ttlts = sorted(record.ttlt or 0.0 for record in kept.records)
    assert found["ttlt_p50"] == pytest.approx(percentile(ttlts, 0.5), rel=0.03)


def test_a_run_is_written_as_parquet_and_drawn(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="the extra analysis is not installed")
    pytest.importorskip("matplotlib", reason="the extra analysis is not installed")
    scenario = tmp_path / "small.toml"
    scenario.write_text(SMALL)
    out, plots = tmp_path / "out", tmp_path / "plots"
    command = ["simulate", str(scenario), "--preset", "vllm-like", "--rates", "4,8"]
    command += ["--processes", "1", "--out", str(out), "--parquet", "--plots", str(plots)]
    assert main(command) == 0
    table = pq.read_table(out / "vllm-like-4-1" / "requests.parquet")
    assert table.num_rows == 80
    assert {"request_id", "arrival_at", "ttft", "ttlt"} <= set(table.column_names)
    drawn = {path.name for path in plots.iterdir()}
    for name in ("latency-cdf", "load-ttft_p99", "kv-load-vllm-like-4-1", "timeline-vllm-like-8-1"):
        assert {f"{name}.png", f"{name}.svg"} <= drawn
    assert (plots / "latency-cdf.png").read_bytes().startswith(b"\x89PNG")


def test_a_streamed_run_keeps_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "small.toml"
    scenario.write_text(SMALL)
    rows = []
    for more in ([], ["--stream"]):
        file = tmp_path / "table.json"
        command = ["simulate", str(scenario), "--preset", "vllm-like", "--processes", "1"]
        assert main([*command, "--json", str(file), *more]) == 0
        rows.append(json.loads(file.read_text())[0])
    kept, streamed = rows
    assert kept.keys() == streamed.keys()
    for name in ("num_finished", "attainment", "tokens_per_s", "gpu_seconds"):
        assert streamed[name] == pytest.approx(kept[name])


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["simulate", "sbs-prefill", "--out", "x", "--parquet"], "pyarrow"),
        (["simulate", "sbs-prefill", "--plots", "x"], "matplotlib"),
        (["reproduce", "sbs", "--plots", "x"], "matplotlib"),
    ],
)
def test_without_the_extra_nothing_runs_and_the_extra_is_named(
    command: list[str],
    module: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(command) == 1
    assert "headway[analysis]" in capsys.readouterr().err


def test_provisioned_gpus_are_drawn_over_those_needed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra analysis is not installed")
    from results import plots

    need = bursts.needed(1)
    assert sum(gpus for _, gpus in need) / len(need) == pytest.approx(4.0, rel=0.5)
    assert [at for at, _ in need[:3]] == [0.0, 2.0, 4.0]
    have = {"fixed": [(0.0, 7.0), (bursts.SECONDS, 7.0)]}
    plots.provisioned(tmp_path, "test", have, need)
    assert (tmp_path / "provisioned-test.svg").read_text().startswith("<?xml")


def test_a_study_keeps_what_was_provisioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "SECONDS", 12.0)
    found = tokenscale.provisioned(1, 1)
    assert list(found) == [tokenscale.PAPER, *tokenscale.BASELINES]
    for points in found.values():
        assert [at for at, _ in points] == [float(second) for second in range(1, 13)]
        assert all(gpus >= 1 for _, gpus in points)


def test_the_same_run_draws_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra analysis is not installed")
    from results import plots

    for folder in ("one", "two"):
        plots.latency_cdfs(tmp_path / folder, {"run": {"ttft": [0.1, 0.2, 0.4]}})
    for kind in ("png", "svg"):
        one, two = (tmp_path / folder / f"latency-cdf.{kind}" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_units_that_come_and_go_have_a_load_while_they_are_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra analysis is not installed")
    from results import plots

    one, two = UnitId("a", 0), UnitId("b", 0)
    samples = [Sample(0.0, {}, 0), Sample(1.0, {one: 5}, 1), Sample(2.0, {one: 5, two: 9}, 2)]
    plots.kv_loads(tmp_path, "test", samples)
    assert (tmp_path / "kv-load-test.png").exists()


def test_of_very_many_requests_an_even_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_MOST_FELT", 10)
    sample = summary.ServedSample()
    for n in range(100):
        sample.add(ServedRequest(n, 0.1, 0.1, 1.0, None) if sample.is_next else None)
    numbers = [each.num_reasoning_tokens for each in sample.kept]
    assert 5 <= len(numbers) <= 10
    assert len({after - before for before, after in pairwise(numbers)}) == 1
