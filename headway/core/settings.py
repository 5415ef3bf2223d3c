"""A preset as the cores' settings: the one place for it, live and in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from headway.core.scheduler.settings import SchedulerSettings
from headway.policies import registry
from headway.policies.batching import Batching
from headway.policies.batching.uniboost import UniBoostParams
from headway.policies.estimation import Estimation
from headway.policies.pacing import TokenPacerParams
from headway.presets import Preset


@dataclass(frozen=True, slots=True)
class Costs:
    """What is known of the instances, for policies that ask: seconds, 0 where nothing is known.

    ``first_pass``: of half a chunk, before any report. ``swap_per_token``: to host memory and
    back. ``per_request`` and ``per_kv_token``: of a decode pass.
    """

    first_pass: float = 0.0
    swap_per_token: float = 0.0
    per_request: float = 0.0
    per_kv_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy by its name in the registry, with its parameters."""

    question: str
    name: str
    params: Mapping[str, Any]

    def make(self) -> Any:
        """A new one; HeadwayError for a name or a parameter that it does not have."""
        return registry.make(self.question, self.name, **self.params)


@dataclass(frozen=True, slots=True)
class WorkerPolicies:
    """What decides inside an instance.

    ``lingers``: whether prompts left over wait a moment for the scheduler's top-up (SBS).
    ``reader_pace``: seconds in which a reader takes one answering token, the pacer's own.
    """

    batching: Policy
    estimation: Policy
    lingers: bool = False
    reader_pace: float = 0.1

    def make_batching(self) -> Batching:
        """A new one."""
        return cast(Batching, self.batching.make())

    def make_estimation(self) -> Estimation:
        """A new one."""
        return cast("Estimation", self.estimation.make())


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a preset comes to, core by core."""

    scheduler: SchedulerSettings
    worker: WorkerPolicies
    burst: Policy
    pacing: Policy
    scaling: Policy


def policy_settings(
    preset: Preset, costs: Costs | None = None, limits: SchedulerSettings | None = None
) -> PolicySettings:
    """The preset's policies; ``limits`` bound the scheduler. HeadwayError for an unknown policy."""
    costs = costs or Costs()

    def policy(question: str, **known: float) -> Policy:
        name = getattr(preset, question)
        asked = registry.find(question, name).parameters()
        found = {param: value for param, value in known.items() if value and param in asked}
        return Policy(question, name, {**found, **preset.params_of(question)})

    batching = policy("batching", swap_per_token=costs.swap_per_token)
    dispatch = policy("dispatch", default_pass_time=costs.first_pass)
    packing, rescheduling, pacing = policy("packing"), policy("rescheduling"), policy("pacing")
    placement = policy("placement", c=costs.per_request, d=costs.per_kv_token)
    return PolicySettings(
        scheduler=replace(
            limits or SchedulerSettings(),
            dispatch=dispatch.name,
            dispatch_params=dispatch.params,
            packing=packing.name,
            packing_params=packing.params,
            placement=placement.name,
            placement_params=placement.params,
            rescheduling=rescheduling.name,
            rescheduling_params=rescheduling.params,
            gamma_fit=_gamma_fit(batching),
        ),
        worker=WorkerPolicies(
            batching,
            policy("estimation"),
            lingers=preset.dispatch == "sbs",
            reader_pace=pacing.params.get("tpot", TokenPacerParams().tpot),
        ),
        burst=policy("burst"),
        pacing=pacing,
        scaling=policy("scaling"),
    )


def _gamma_fit(batching: Policy) -> UniBoostParams | None:
    """How γ is fitted for a batching policy that takes it; HeadwayError as ``Policy.make``."""
    answer = registry.find(batching.question, batching.name)
    params = answer.checked(f"batching {batching.name}", batching.params)
    return params if isinstance(params, UniBoostParams) else None
