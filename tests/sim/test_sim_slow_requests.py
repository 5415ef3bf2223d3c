"""A request that was slow for several reasons is told each of them by name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cli import main
from headway.cluster import Role
from headway.core.scheduler.settings import SchedulerSettings
from headway.life.parts import PartKind
from headway.life.record import LifeRecord
from headway.sim.cluster import SimRequest
from headway.sim.experiment import Run, simulate
from headway.sim.network import NetworkParams
from results.recording import write_run
from tests.fakes.films import SCENARIO
from tests.fakes.lives import conserves
from tests.fakes.sim_clusters import cluster_of, instance

_OFTEN = {"interval": 0.5, "rest": 1.0, "theta": 0.01, "floor": 0.0}


def slow_run() -> Run:
    """A quiet minute, then a burst on decoders with little memory that even out their load."""
    rng = random.Random(1)
    requests = [SimRequest(f"early-{n}", 1.0 + n, 150, 40) for n in range(30)]
    requests += [
        SimRequest(f"burst-{n}", 31.0 + n * 0.01, 300, 200 + int(rng.random() * 700))
        for n in range(16)
    ]
    scheduler = SchedulerSettings(
        placement="least-kv", rescheduling="current-load", rescheduling_params=_OFTEN
    )
    decode = instance(Role.DECODE, kv_capacity_tokens=3200)
    spec = cluster_of(
        ((instance(Role.PREFILL), 1), (decode, 2)),
        scheduler=scheduler,
        network=NetworkParams(bytes_per_s=1e9),
    )
    return simulate(spec, requests, until=200.0, keeps_decisions=True, keeps_lives=True)


def is_slow_for_all_reasons(life: LifeRecord) -> bool:
    kinds = {part.kind for part in life.parts}
    return {PartKind.MOVE, PartKind.PREEMPTED} <= kinds and life.crowd.is_burst


def test_behind_a_burst_preempted_and_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = slow_run()
    write_run(tmp_path, run)
    for life in run.lives:
        conserves(life)
    slow = next(life for life in run.lives if is_slow_for_all_reasons(life))
    assert main(["explain", slow.request_id, "--run", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for cause in ("behind a burst: ", "preempted: it lost its blocks", "moved: it moved "):
        assert cause in text
    assert "longest: " in text
    assert "decisions:" in text
    assert "rescheduling by current-load: to decode-" in text
    assert "it cannot be replayed: " in text
    assert "record it again" in text


def test_what_another_policy_would_have_done_is_simulated_from_the_run_s_own_making(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "small.toml"
    scenario.write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "small.toml", "--preset", "sbs", "--out", "runs"]) == 0
    monkeypatch.chdir(tmp_path.parent)  # the run says where its scenario is
    capsys.readouterr()
    explain = ["explain", "chat-60", "--run", str(tmp_path / "runs" / "sbs-1")]
    assert main(explain) == 0
    text = capsys.readouterr().out
    for line in ("as recorded ", "sbs, as it ran, simulated ", "vllm-like, simulated "):
        assert f"  {line}" in text
    assert "80 requests around it on 1 prefill, 2 decode" in text
    assert main([*explain, "--what-if", ""]) == 0
    assert "another policy" not in capsys.readouterr().out
    scenario.write_text(SCENARIO.replace("median = 400", "median = 300"))
    assert main(explain) == 0
    assert "its scenario is not what it was" in capsys.readouterr().out
