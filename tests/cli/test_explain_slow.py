"""``headway explain`` tells all that held a request up, and what other policies would have done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import main
from headway.life.form import unpacked
from headway.life.reasons import reasons_of
from headway.life.record import LifeRecord
from results.recording import MAKING
from tests.fakes.films import SCENARIO
from tests.fakes.lives import conserves

BURSTS = """
name = "bursts"
instances = [
  { role = "prefill", count = 1, profile = "llama-8b-a100" },
  { role = "decode", count = 2, profile = "llama-8b-a100", kv_capacity_tokens = 2400 },
]
policy = { rescheduling = "current-load" }
set.rescheduling = { interval = 0.2, rest = 0.5, theta = 0.01, floor = 0 }

[workload]
process = "bursts"
burst_factor = 40.0
burst_length = 0.3
burst_share = 0.02
rate = 2.0
num_requests = 120
classes = [
  { name = "short", share = 0.5, prompt = 300, answer = 400 },
  { name = "long", share = 0.5, prompt = 300, answer = 1100 },
]
"""
CAUSES = {"behind a burst", "preempted", "moved"}


def causes_of(life: LifeRecord) -> set[str]:
    """Return the causes that held it up for long enough to be told."""
    return {each.name for each in reasons_of(life) if each.is_delay and each.seconds >= 1e-3}


def test_a_request_behind_a_burst_moved_and_preempted_is_told_all_three_causes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, folder = tmp_path / "bursts.toml", tmp_path / "runs"
    scenario.write_text(BURSTS)
    run = [str(scenario), "--preset", "vllm-like", "--seeds", "1", "--out", str(folder)]
    assert main(["simulate", *run]) == 0
    lines = (folder / "vllm-like-1" / "lives.jsonl").read_text().splitlines()
    lives = [unpacked(json.loads(line)) for line in lines]
    for life in lives:
        conserves(life)
    slow = next(life for life in lives if causes_of(life) >= CAUSES)
    capsys.readouterr()
    asked = [slow.request_id, "--run", str(folder / "vllm-like-1"), "--what-if", "sbs"]
    assert main(["explain", *asked]) == 0
    text = capsys.readouterr().out
    for cause in ("behind a burst: ", "preempted: it lost its blocks", "moved: it moved "):
        assert cause in text
    for told in ("longest: ", "decisions:", "rescheduling by current-load: to decode-"):
        assert told in text
    assert "vllm-like, as it ran, simulated" in text
    assert "sbs, simulated" in text
    (folder / "vllm-like-1" / MAKING).unlink()
    assert main(["explain", *asked]) == 0
    text = capsys.readouterr().out
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
