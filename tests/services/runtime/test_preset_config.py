"""A preset, and a service's own options over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import up
from headway.core.reasoning import Markers
from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.experiment import Conditions, cluster_spec
from headway.sim.scenario import load_scenario
from services.autoscaler.config import AutoscalerConfig
from services.gateway.config import GatewayConfig
from services.local.options import process_specs
from services.runtime.config import load_config
from services.runtime.reasoning import find_markers
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig

MODELS = Path(__file__).parents[3] / "models"
MINI = str(MODELS / "headway-mini")


@pytest.fixture(scope="module")
def conditions() -> Conditions:
    return load_scenario("chat-and-reasoning").conditions


@pytest.mark.parametrize("name", PRESETS)
def test_services_and_simulator_run_the_same_policies(name: str, conditions: Conditions) -> None:
    simulated = cluster_spec(PRESETS[name], conditions)
    scheduler = SchedulerConfig(preset=name).settings()
    worker = WorkerConfig(preset=name).policies()
    for question in ("dispatch", "packing", "placement", "rescheduling"):
        assert getattr(scheduler, question) == getattr(simulated.scheduler, question)
    assert worker.batching.name == simulated.batching.name
    lingers = simulated.worker.linger > 0
    assert (worker.worker.linger > 0, scheduler.dispatch == "sbs-warm") == (lingers, lingers)


def test_a_worker_without_options_is_one_of_headway_up() -> None:
    for chosen in ([], ["--preset", "pascal"]):
        specs = process_specs(up.parse([*chosen]), 2)
        for spec in (each for each in specs if each.service == "worker"):
            started = load_config(WorkerConfig, list(spec.flags)).policies()
            assert started == load_config(WorkerConfig, chosen).policies()
            assert started.batching.name == (PRESETS["pascal"].batching if chosen else "fcfs")


def test_an_option_wins_over_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_PRESET", "pascal")
    monkeypatch.setenv("HEADWAY_SET", "batching.quantum=50")
    worker = load_config(WorkerConfig, [])
    assert worker.policies().batching.params == {"quantum": 50}
    worker = load_config(WorkerConfig, ["--policy", "batching=las", "--set", ""])
    assert worker.policies().batching.name == "las"


def test_the_gateway_paces_and_labels_as_the_preset_says() -> None:
    policies = GatewayConfig(preset="headway").policies()
    assert (policies.pacing.name, policies.burst.name) == ("token-pacer", "dual-signal")
    plain = GatewayConfig(preset="headway", policy="pacing=off").policies()
    assert plain.pacing.name == "off"


def test_the_autoscaler_scales_as_the_preset_says() -> None:
    assert AutoscalerConfig(preset="tokenscale").scaling_policy().name == "tokenscale"
    fixed = AutoscalerConfig(
        preset="tokenscale", policy="scaling=fixed", num_decode=3
    ).scaling_policy()
    assert (fixed.name, fixed.params["num_decode"]) == ("fixed", 3)


@pytest.mark.parametrize("config", [SchedulerConfig, WorkerConfig, GatewayConfig, AutoscalerConfig])
def test_an_unknown_preset_is_refused_with_the_known_ones(
    config: type[SchedulerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HeadwayError, match="vllm-like"):
        config(preset="vllm")
    with pytest.raises(SystemExit):
        load_config(config, ["--preset", "vllm"])
    assert "vllm-like" in capsys.readouterr().err


def test_the_markers_around_reasoning_come_from_the_tokenizer() -> None:
    own = find_markers(MINI)
    assert (len(own.start), len(own.end)) == (1, 1)
    assert find_markers(MINI, "</think>") == own
    assert find_markers(MINI, "</think>", "<think>") == own
    assert find_markers(str(MODELS)) == Markers()
    with pytest.raises(HeadwayError, match=r"tokenizer\.json"):
        find_markers(str(MODELS), "</think>")


def test_the_start_of_an_end_of_ones_own_is_unknown_unless_given() -> None:
    end = find_markers(MINI, "So:")
    assert len(end.end) > 1
    assert end.start == ()
    assert find_markers(MINI, "So:", "Hm:").start != ()
