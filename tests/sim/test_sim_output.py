"""What a run leaves: statistics in constant memory, Parquet, plots."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli import main
from headway.metrics import percentile
from headway.presets import PRESETS
from headway.sim.experiment import cluster_spec, simulate
from headway.sim.scenario import parse_scenario
from headway.sim.statistics import RELATIVE_ERROR, Digest, StreamingSummary
from headway.sim.summary import summarise

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


def test_streamed_figures_are_those_of_kept_records() -> None:
    scenario = parse_scenario(SMALL, "test")
    spec = cluster_spec(PRESETS["vllm-like"], scenario.conditions)
    kept = simulate(spec, scenario.workload.requests(1))
    expected = summarise(kept, scenario.slo).row()
    streamed = StreamingSummary(scenario.slo)
    run = simulate(spec, scenario.workload.requests(1), ended=streamed.ended)
    assert run.records == []
    found = streamed.row(run.ended_at, run.gpu_seconds)
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
