"""Settings of the cores, made from a preset: one function for live services and the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from headway.core.defaults import WATCHDOG_FLOOR
from headway.core.gateway.settings import GatewaySettings
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.worker.settings import WorkerSettings
from headway.cost.costs import Costs
from headway.cost.velocity import TokenLimits
from headway.errors import Code, HeadwayError
from headway.policies import registry
from headway.policies.answer import Answer
from headway.policies.batching import Batching
from headway.policies.dispatch import Dispatching
from headway.policies.estimation import Estimation
from headway.presets import QUESTIONS, Preset

if TYPE_CHECKING:
    from headway.policies.batching.gamma_ada import GammaFit

_OPTIONS: Mapping[str, str] = MappingProxyType({"scale_down_delay": "hold_down"})
"""Parameters of scaling policies whose option has another name."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy by its name in the registry, with its parameters."""

    question: str
    name: str
    params: Mapping[str, Any]

    @property
    def answer(self) -> Answer:
        """The policy's entry in the registry; HeadwayError for an unknown name."""
        return registry.find(self.question, self.name)

    def make(self) -> Any:
        """Make a new one; HeadwayError for an unknown name or parameter."""
        return registry.make(self.question, self.name, **self.params)

    def checked(self) -> Any:
        """Return the parameters as their dataclass; HeadwayError as ``make``."""
        return self.answer.checked(f"{self.question} {self.name}", self.params)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Settings of each core that a preset yields."""

    scheduler: SchedulerSettings
    worker: WorkerSettings
    gateway: GatewaySettings
    batching: Policy
    estimation: Policy
    burst: Policy
    pacing: Policy
    scaling: Policy

    def make_batching(self) -> Batching:
        """Make a batching policy for one worker."""
        return cast(Batching, self.batching.make())

    def make_estimation(self) -> Estimation:
        """Make an estimation policy for one worker."""
        return cast("Estimation", self.estimation.make())


def policy_settings(
    preset: Preset,
    costs: Costs | None = None,
    scheduler: SchedulerSettings | None = None,
    worker: WorkerSettings | None = None,
    gateway: GatewaySettings | None = None,
) -> PolicySettings:
    """Return the preset's policies within the limits of ``scheduler``, ``worker`` and ``gateway``.

    The live services and the simulator both take the settings of all their cores from here. A
    worker lingers only if the dispatch policy asks for it, and its readers' pace is the pacer's.
    HeadwayError for an unknown policy or parameter.
    """
    costs = costs or Costs()
    worker = worker or WorkerSettings()
    policy = partial(_policy, preset)
    dispatch = policy("dispatch", profile=costs.profile, watchdog_floor=WATCHDOG_FLOOR)
    packing, placement = policy("packing"), policy("placement")
    rescheduling = policy("rescheduling")
    pacing = policy("pacing")
    reader_pace = {**pacing.answer.parameters(), **pacing.params}.get("tpot", worker.reader_pace)
    batching = policy("batching", reader_pace=reader_pace)
    burst = policy("burst")
    lingers = cast("type[Dispatching]", dispatch.answer.make).lingers
    linger = worker.linger if lingers else 0.0
    return PolicySettings(
        scheduler=replace(
            scheduler or SchedulerSettings(),
            dispatch=dispatch.name,
            dispatch_params=dispatch.params,
            packing=packing.name,
            packing_params=packing.params,
            placement=placement.name,
            placement_params=placement.params,
            rescheduling=rescheduling.name,
            rescheduling_params=rescheduling.params,
            gamma_fit=_gamma_fit(batching),
            costs=costs,
            limits=_limits(dispatch),
        ),
        worker=replace(worker, linger=linger, reader_pace=reader_pace, costs=costs),
        gateway=_gateway_settings(gateway or GatewaySettings(), burst, pacing),
        batching=batching,
        estimation=policy("estimation"),
        burst=burst,
        pacing=pacing,
        scaling=policy("scaling", profile=costs.profile),
    )


def _gateway_settings(limits: GatewaySettings, burst: Policy, pacing: Policy) -> GatewaySettings:
    return replace(
        limits,
        burst=burst.name,
        burst_params=burst.params,
        pacing=pacing.name,
        pacing_params=pacing.params,
    )


def scaling_policy(preset: Preset, costs: Costs, bounds: Mapping[str, object]) -> Policy:
    """Return the preset's scaling policy; ``bounds`` give parameters that the preset leaves open.

    ``bounds``: by the names of the autoscaler's options; those that the policy lacks do nothing.
    """
    asked, own = registry.find("scaling", preset.scaling).parameters(), preset.params_of("scaling")
    named = {_OPTIONS.get(name, name): value for name, value in bounds.items()}
    known = {name: value for name, value in named.items() if name in asked}
    return policy_settings(preset.but({}, {"scaling": {**known, **own}}), costs).scaling


def _policy(preset: Preset, question: str, **known: object) -> Policy:
    """Return the preset's policy; ``known`` values stand in for parameters it does not give."""
    name = getattr(preset, question)
    answer = registry.find(question, name)
    asked = answer.parameters()
    defaults = {param: value for param, value in known.items() if value and param in asked}
    given = answer.typed(f"{question} {name}", preset.params_of(question))
    return Policy(question, name, {**defaults, **given})


def require_policies(preset: Preset, costs: Costs | None = None) -> None:
    """Make every policy of a preset once; HeadwayError for the first that cannot be made."""
    chosen = policy_settings(preset, costs)
    settings = chosen.scheduler
    registry.make("dispatch", settings.dispatch, **settings.dispatch_params)
    registry.make("packing", settings.packing, **settings.packing_params)
    registry.make("placement", settings.placement, **settings.placement_params)
    registry.make("rescheduling", settings.rescheduling, **settings.rescheduling_params)
    for policy in (chosen.batching, chosen.estimation, chosen.burst, chosen.pacing, chosen.scaling):
        policy.make()


def require_live(preset: Preset) -> None:
    """Refuse a preset with a policy that decides nothing outside the simulator (HeadwayError)."""
    for question in QUESTIONS:
        answer = registry.find(question, getattr(preset, question))
        if answer.instead:
            message = (
                f"{question} {answer.name} decides by what only the simulator knows: choose "
                f"{answer.instead}, or run it with `headway simulate`"
            )
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param=question)


def stages_without_classes(preset: Preset) -> list[str]:
    """Return the stages at which a preset's policies do not look at a request's class."""
    stages = []
    dispatch = registry.find("dispatch", preset.dispatch)
    if not cast("type[Dispatching]", dispatch.make).holds_back:
        stages.append(f"the window (dispatch {preset.dispatch} holds nothing back)")
    batching = registry.find("batching", preset.batching)
    if not cast("type[Batching]", batching.make).reads_classes:
        stages.append(f"the batch (batching {preset.batching})")
    return stages


def needs_profile(preset: Preset) -> bool:
    """Return whether a policy of the preset needs the velocities of an instance."""
    asked = (registry.find(q, getattr(preset, q)) for q in ("dispatch", "scaling"))
    return any(answer.reads_profile for answer in asked)


def _limits(dispatch: Policy) -> TokenLimits:
    """Return the limits that a dispatch policy keeps; TokenScale's where it has none."""
    known = {**dispatch.answer.parameters(), **dispatch.params}
    given = (known.get(name) for name in ("ttft_medium", "tpot_slo"))
    return TokenLimits(
        *(value or default for value, default in zip(given, TokenLimits(), strict=True))
    )


def _gamma_fit(batching: Policy) -> GammaFit | None:
    """Return how γ is fitted for a batching policy that needs it; HeadwayError as ``make``."""
    params = batching.checked()
    fits = cast("type[Batching]", batching.answer.make).fits_gamma
    return cast("GammaFit", params) if fits else None
