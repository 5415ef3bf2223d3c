"""Live and simulated cores get equal settings: what differs is named here, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from inspect import signature
from types import MappingProxyType
from typing import Any

import pytest

from headway.cluster import Role
from headway.core.gateway.settings import GatewaySettings
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Costs, Source
from headway.cost.profile import load_profile
from headway.policies import registry
from headway.policies.readers import constants_of, teach
from headway.policies.registry import REGISTRY
from headway.presets import PRESETS, find_preset
from headway.sim.experiment import Conditions, cluster_spec
from headway.sim.network import NetworkParams
from headway.sim.spec import Autoscaling
from headway.sim.worker import InstanceSpec
from services.autoscaler.config import AutoscalerConfig
from services.gateway.config import GatewayConfig
from services.runtime.preset import PresetConfig
from services.runtime.stream import Dialled
from services.scheduler import worker_link
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig

PROFILE = "qwen-7b-h800"
CONDITIONS = Conditions(((InstanceSpec(Role.UNIFIED, load_profile(PROFILE)), 1),))

SCHEDULER: Mapping[str, str] = MappingProxyType({})
WORKER = MappingProxyType(
    {
        "max_steps": "many decode steps are one simulated pass; a test compares them",
        "report_interval": "every report ends such a pass",
        "linger": "a round trip to the scheduler: as configured live, of the simulated network",
        "end_of_reasoning": "the model's: a service adds it when it has read the model",
        "prefix_caching": "simulated blocks are named by traces, not hashed from their tokens",
        "predict_every": "a simulated predictor answers by itself",
        "swaps_beside": "the device's: a service adds it when it knows the engine",
        "tells_lives": "lives decide nothing; a simulation writes them down where it is asked to",
    }
)
GATEWAY: Mapping[str, str] = MappingProxyType(
    {"num_lives": "lives decide nothing; a simulation writes them down where it is asked to"}
)

AUTOSCALER = MappingProxyType(
    {
        **{
            f"num_{role}": "of the policy that keeps all: simulated ones are the scenario's"
            for role in ("prefill", "decode", "convertible", "unified")
        },
        "staleness": "no simulated report is late; the core's default is the live one",
        "change_roles": "simulated instances keep their roles: one ends and another starts",
        "num_decisions": "decides nothing: a simulation keeps all of them",
        "model_name": "a simulated cluster serves one model",
        "actuator": "simulated instances start and end at once when they are told",
        "scaled_by_role": "of actuators",
        "compose_command": "of actuators",
        "kubernetes_namespace": "of actuators",
    }
)
BOUNDS: Mapping[str, Any] = MappingProxyType(
    {
        "min_prefill": 2,
        "max_prefill": 7,
        "min_decode": 3,
        "max_decode": 9,
        "scale_down_delay": 33.0,
        "interval": 2.5,
        "budget": 11,
    }
)


def differing(live: Any, simulated: Any) -> set[str]:
    """The names of the fields in which two settings of one core differ."""
    assert type(live) is type(simulated)
    names = (each.name for each in fields(live))
    return {name for name in names if getattr(live, name) != getattr(simulated, name)}


@pytest.mark.parametrize("name", PRESETS)
def test_schedulers_decide_by_equal_settings(name: str) -> None:
    live = SchedulerConfig(preset=name, profile=PROFILE).settings()
    simulated = cluster_spec(find_preset(name), CONDITIONS).scheduler
    assert differing(live, simulated) == set(SCHEDULER)


@pytest.mark.parametrize("name", PRESETS)
def test_workers_decide_by_equal_settings(name: str) -> None:
    live = WorkerConfig(preset=name, profile=PROFILE).policies()
    simulated = cluster_spec(find_preset(name), CONDITIONS)
    assert differing(live.worker, simulated.worker) <= set(WORKER)
    assert live.batching == simulated.batching


@pytest.mark.parametrize("name", PRESETS)
def test_workers_whose_engine_plans_estimate_lengths_as_live_ones(name: str) -> None:
    live = WorkerConfig(preset=name, profile=PROFILE).policies()
    ((kind, count),) = CONDITIONS.instances
    conditions = replace(CONDITIONS, instances=((replace(kind, planner="native"), count),))
    simulated = cluster_spec(find_preset(name), conditions)
    assert simulated.counted == live.estimation
    assert simulated.batching == live.batching
    assert differing(live.worker, simulated.worker) <= set(WORKER)


def test_no_reason_to_differ_is_out_of_date() -> None:
    live = WorkerConfig(preset="sbs", profile=PROFILE).policies()
    simulated = cluster_spec(find_preset("sbs"), CONDITIONS)
    assert differing(live.worker, simulated.worker) == set(WORKER)


@pytest.mark.parametrize("name", PRESETS)
def test_gateways_decide_by_equal_settings(name: str) -> None:
    live = GatewayConfig(preset=name, profile=PROFILE).policies().gateway
    simulated = cluster_spec(find_preset(name), CONDITIONS).gateway
    assert differing(live, simulated) == set(GATEWAY)
    assert simulated.pacing == find_preset(name).pacing


def scaled(options: Mapping[str, Any], policy: str = "") -> Conditions:
    """The conditions whose pools follow the load, by the names of the live options."""
    policies = {"scaling": policy} if policy else {}
    return replace(CONDITIONS, autoscaling=Autoscaling(**options), policies=policies)


@pytest.mark.parametrize("options", [{}, BOUNDS])
@pytest.mark.parametrize("policy", ["", *REGISTRY["scaling"]])
@pytest.mark.parametrize("name", PRESETS)
def test_autoscalers_decide_by_equal_settings(
    name: str, policy: str, options: Mapping[str, Any]
) -> None:
    choice = f"scaling={policy}" if policy else ""
    live = AutoscalerConfig(preset=name, policy=choice, profile=PROFILE, **options)
    simulated = cluster_spec(find_preset(name), scaled(options, policy))
    assert differing(live.settings(), simulated.autoscaling.settings()) == set()
    if live.scaling_policy().name == "fixed":  # who keeps all instances is scaled by another's
        live = AutoscalerConfig(
            preset=name, policy="scaling=tokenscale", profile=PROFILE, **options
        )
    assert simulated.scaling == live.scaling_policy()


def test_autoscalers_have_equal_options_or_a_reason_for_others() -> None:
    inherited, simulated = PresetConfig.model_fields, {f.name: f for f in fields(Autoscaling)}
    live = {n: f for n, f in AutoscalerConfig.model_fields.items() if n not in inherited}
    assert live.keys() - simulated.keys() == set(AUTOSCALER)
    assert simulated.keys() <= live.keys()
    assert {n: f.default for n, f in simulated.items()} == {n: live[n].default for n in simulated}


def test_costs_without_a_profile_are_unknown_and_not_those_of_another_model() -> None:
    for name in PRESETS:
        costs = PresetConfig(preset=name).costs()
        assert replace(costs, profile=None) == Costs()


@pytest.mark.parametrize("name", ["star", "headway"])
def test_the_link_of_moves_is_that_of_a_given_profile_or_of_the_simulated_network(
    name: str,
) -> None:
    def link(settings: SchedulerSettings) -> tuple[float, Source]:
        policy = registry.make("rescheduling", "star", **settings.rescheduling_params)
        teach(policy, settings.costs)
        (found,) = constants_of(policy)
        return found.value, found.source

    def live(profile: str) -> tuple[float, Source]:
        return link(SchedulerConfig(preset=name, profile=profile).settings())

    assert live("") == (12.5e9, Source.DEFAULT)
    assert live("llama-8b-a100") == (25e9, Source.PROFILE)
    conditions = replace(CONDITIONS, network=NetworkParams(3e9))
    simulated = cluster_spec(find_preset(name), conditions).scheduler
    assert link(simulated) == (3e9, Source.PROFILE)


def test_a_gateway_waits_for_longer_than_a_link_needs_to_reach_a_process_again() -> None:
    connects = signature(Dialled.__init__).parameters["connect_timeout"].default
    assert GatewaySettings().death_patience > worker_link._LONGEST_PAUSE + connects
