"""``headway profile run`` on the real small model: its profile drives what reads profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import main, up
from headway.cost.profile import load_profile
from headway.policies import registry
from services.local.refusals import refuse_wrong_configurations, refuse_wrong_scaling
from tests.fakes.local_cluster import MODEL

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

TINY = (
    *("--seconds", "0.1", "--input-tokens", "16,32,64", "--output-tokens", "4,8,16"),
    *("--max-model-len", "128", "--kv-cache-gib", "0.004"),
)
SCENARIO = """
name = "small"
[[instances]]
role = "prefill"
profile = "llama-8b-a100"
[[instances]]
role = "decode"
profile = "llama-8b-a100"
[workload]
rate = 2.0
num_requests = 50
[[workload.classes]]
name = "chat"
prompt = { distribution = "lognormal", median = 40, sigma = 0.5, max = 100 }
answer = { distribution = "lognormal", median = 20, sigma = 0.5, max = 60 }
[slo]
ttft = 2.0
tpot = 0.1
"""


def test_a_profile_is_measured_and_drives_the_simulator_and_the_autoscaler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mini.toml"
    assert main(["profile", "run", "--model", MODEL, "--out", str(out), *TINY]) == 0
    said = capsys.readouterr().out
    assert "V_P:" in said
    assert f"written to {out}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mini.toml"]

    profile = load_profile(out)
    assert (profile.model, profile.kv_bytes_per_token) == ("headway-mini", 4608)
    assert profile.buckets.input_tokens == (16, 32, 64)
    assert 0 < profile.start_up < 120
    assert profile.pass_time.seconds(64, 0, 0, 0) > 0
    assert registry.make("scaling", "tokenscale", profile=load_profile(out)).name == "tokenscale"
    flags = ["--autoscale", "--preset", "tokenscale", "--profile", str(out)]
    refuse_wrong_scaling(up.parse(flags))
    refuse_wrong_configurations(up.parse(flags))

    scenario = tmp_path / "small.toml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    simulate = ("simulate", str(scenario), "--profile", str(out), "--processes", "1")
    assert main([*simulate, "--preset", "tokenscale,vllm-like"]) == 0
    assert "tokenscale" in capsys.readouterr().out
