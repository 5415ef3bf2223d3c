"""A preset as the cores' settings: the one place for it, live and in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from headway.core.scheduler.settings import SchedulerSettings
from headway.policies import registry
from headway.policies.answer import Answer
from headway.policies.batching import Batching
from headway.policies.batching.gamma_ada import GammaFit
from headway.policies.dispatch import Dispatching
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

    @property
    def answer(self) -> Answer:
        """Its entry in the registry; HeadwayError for an unknown name."""
        return registry.find(self.question, self.name)

    def make(self) -> Any:
        """Make a new one; HeadwayError for a name or a parameter that it does not have."""
        return registry.make(self.question, self.name, **self.params)

    def checked(self) -> Any:
        """Return its parameters as their dataclass; HeadwayError as ``make``."""
        return self.answer.checked(f"{self.question} {self.name}", self.params)


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
        answer = registry.find(question, name)
        asked = answer.parameters()
        found = {param: value for param, value in known.items() if value and param in asked}
        given = answer.typed(f"{question} {name}", preset.params_of(question))
        return Policy(question, name, {**found, **given})

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
            lingers=cast("type[Dispatching]", dispatch.answer.make).lingers,
            reader_pace=pacing.params.get("tpot", TokenPacerParams().tpot),
        ),
        burst=policy("burst"),
        pacing=pacing,
        scaling=policy("scaling"),
    )


def _gamma_fit(batching: Policy) -> GammaFit | None:
    """Return how γ is fitted for a batching policy that asks for it; HeadwayError as ``make``."""
    params = batching.checked()
    fits = cast("type[Batching]", batching.answer.make).fits_gamma
    return cast(GammaFit, params) if fits else None
