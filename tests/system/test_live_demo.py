"""``headway demo`` with real clusters: few requests, both presets, one after the other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bench.demo import live
from bench.demo.load import OVERLOAD, REGIMES, LoadBounds
from bench.runner.comparison import compare
from cli import main
from headway.errors import HeadwayError
from services.local.cluster import LocalCluster
from services.local.options import PolicyOptions, WorkerCounts
from tests.fakes.local_cluster import MODEL

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


@pytest.mark.slow
def test_a_pair_of_real_clusters_gives_figures_of_every_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, few = tmp_path / "demo.json", ("--num-requests", "24", "--warm-up", "16")
    bounds = ("--for", "10m", "--max-running", "2", "--seeds", "7,", "--topology", "split")
    args = [*few, *bounds, "--log-dir", str(tmp_path / "logs"), "--json", str(file)]
    assert main(["demo", "--model", MODEL, *args]) == 0
    written = json.loads(file.read_text())
    (pair,) = written["pairs"]
    assert pair["seed"] == 7
    assert list(pair["capacities"]) == ["vllm-like", "headway"]
    assert pair["workers"]["headway"]["prefill"] == 1
    assert [(run["system"], run["regime"]) for run in written["runs"]] == [
        (name, regime) for name in ("vllm-like", "headway") for regime in REGIMES
    ]
    for figures in (run["figures"] for run in written["runs"]):
        assert (figures["num_requests"], figures["num_failed"]) == (24, 0)
        assert figures["chat_ttft_p99"] > 0.0
        assert figures["short_ttfat_p99"] > 0.0
        assert figures["unread_slowdown_p99"] > 0.0
        assert 0.0 <= figures["qoe_kept"] <= 1.0
    for regime in REGIMES:
        assert pair["offers"][regime]["num_requests"] == 24
        for row in written["verdicts"][regime]["headway"]:
            assert row["verdict"] == "too few pairs"
    said = capsys.readouterr().out
    assert "tokens/s at saturation" in said
    assert "130% of saturation all the time" in said
    assert "unread: slowdown P99" in said


async def test_a_cluster_that_does_not_serve_in_time_is_refused_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "START", 0.01)
    started = []

    class Noted(LocalCluster):
        async def start(self) -> None:
            started.append(self)
            await super().start()

    monkeypatch.setattr("bench.runner.started.LocalCluster", Noted)
    counts, bounds = WorkerCounts(1, 1), LoadBounds(60.0, 24)
    setting = live.Setting(MODEL, [counts], "cpu", 2, 16, [OVERLOAD], bounds, tmp_path)
    with pytest.raises(HeadwayError, match=r"does not serve after 0.01 s: see .*vllm-like"):
        await compare(live.Demo(setting, [PolicyOptions("vllm-like")]), [1], None)
    (cluster,) = started
    async with asyncio.timeout(60):
        while any(process.pid for process in cluster.supervisor.processes):
            await asyncio.sleep(0.05)
