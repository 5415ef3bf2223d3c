"""Live and simulated cores decide by equal settings and costs where both know one profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import PolicySettings, policy_settings
from headway.core.worker.settings import WorkerSettings
from headway.cost.costs import Costs
from headway.cost.profile import load_profile
from headway.presets import PRESETS, find_preset
from headway.sim.experiment import Conditions, cluster_spec
from headway.sim.worker import InstanceSpec
from services.autoscaler.config import AutoscalerConfig
from services.runtime.preset import PresetConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig

PROFILE = "qwen-7b-h800"
CONDITIONS = Conditions(((InstanceSpec(Role.UNIFIED, load_profile(PROFILE)), 1),))


def decides(settings: SchedulerSettings) -> SchedulerSettings:
    """Leave out the limits that are an operator's: queues, graces, what is kept and reported.

    The watchdog's floor is one of them: no simulated machine has hiccups.
    """
    limits = SchedulerSettings()
    params = {k: v for k, v in settings.dispatch_params.items() if k != "watchdog_floor"}
    return replace(
        limits,
        dispatch=settings.dispatch,
        dispatch_params=params,
        packing=settings.packing,
        packing_params=dict(settings.packing_params),
        placement=settings.placement,
        placement_params=dict(settings.placement_params),
        rescheduling=settings.rescheduling,
        rescheduling_params=dict(settings.rescheduling_params),
        gamma_fit=settings.gamma_fit,
        costs=settings.costs,
        kv_watermark=settings.kv_watermark,
        moves=settings.moves,
    )


def ranks(settings: WorkerSettings) -> WorkerSettings:
    """Leave out what a machine or a model sets: steps, waits, memory, markers, intervals."""
    return replace(
        WorkerSettings(),
        watermark=settings.watermark,
        max_running=settings.max_running,
        reader_pace=settings.reader_pace,
        move_rounds=settings.move_rounds,
        costs=settings.costs,
    )


@pytest.mark.parametrize("name", PRESETS)
def test_schedulers_decide_by_equal_settings(name: str) -> None:
    live = SchedulerConfig(preset=name, profile=PROFILE).settings()
    simulated = cluster_spec(find_preset(name), CONDITIONS).scheduler
    assert decides(live) == decides(simulated)


@pytest.mark.parametrize("name", PRESETS)
def test_workers_decide_by_equal_settings(name: str) -> None:
    live = WorkerConfig(preset=name, profile=PROFILE).policies()
    simulated = cluster_spec(find_preset(name), CONDITIONS)
    assert ranks(live.worker) == ranks(simulated.worker)
    assert live.batching == simulated.batching


@pytest.mark.parametrize("name", PRESETS)
def test_autoscalers_decide_by_equal_velocities(name: str) -> None:
    simulated: PolicySettings = policy_settings(
        find_preset(name), Costs.of([(Role.UNIFIED, load_profile(PROFILE))])
    )
    live = AutoscalerConfig(preset=name, profile=PROFILE).scaling_policy()
    assert live.params.get("profile") == simulated.scaling.params.get("profile")


def test_costs_without_a_profile_are_unknown_and_not_those_of_another_model() -> None:
    for name in PRESETS:
        costs = PresetConfig(preset=name).costs()
        assert replace(costs, profile=None) == Costs()
