"""An autoscaler's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from headway.core.autoscaler.budget import Budget
from headway.core.autoscaler.events import ROLES
from headway.core.autoscaler.settings import AutoscalerSettings
from headway.core.settings import Policy, scaling_policy
from headway.errors import invalid
from services.runtime.preset import PresetConfig

_ROLES = ("prefill", "decode", "convertible", "unified")
_NUMBERS = (
    *(f"num_{role}" for role in _ROLES),
    *(f"{end}_{role}" for end in ("min", "max") for role in ("prefill", "decode")),
    "max_unified",
)


class AutoscalerConfig(PresetConfig):
    """Options of an autoscaler: its bounds, besides the preset's scaling policy."""

    num_prefill: int = Field(1, ge=0, description="prefill workers (fixed)")
    num_decode: int = Field(1, ge=0, description="decode workers (fixed)")
    num_convertible: int = Field(0, ge=0, description="convertible workers (fixed)")
    num_unified: int = Field(0, ge=0, description="unified workers (fixed)")
    min_prefill: int = Field(1, ge=0, description="fewest prefill workers (all but fixed)")
    max_prefill: int = Field(10, ge=0, description="most prefill workers (all but fixed)")
    min_decode: int = Field(1, ge=0, description="fewest decode workers (all but fixed)")
    max_decode: int = Field(10, ge=0, description="most decode workers (all but fixed)")
    max_unified: int = Field(
        0, ge=0, description="most unified workers, 0: prefill and decode workers alone (headway)"
    )
    scale_down_delay: float = Field(
        10.0, ge=0.0, description="s of lower need before a pool shrinks (all but fixed)"
    )
    budget: int = Field(0, ge=0, description="most workers of all roles together, 0: no limit")
    change_roles: bool = Field(
        True, description="workers of a shrinking pool take the role of the growing one (process)"
    )
    interval: float = Field(1.0, gt=0.0, description="s between decisions")
    staleness: float = Field(5.0, gt=0.0, description="s after which a report is stale")
    num_decisions: int = Field(
        512, ge=1, le=100_000, description="decisions kept for `headway explain`"
    )
    model_name: str = Field("", description="model to scale; default: all together")
    actuator: Literal["none", "process", "compose", "kubernetes"] = Field(
        "none", description="how workers are started and stopped; none: targets are only published"
    )
    scaled_by_role: dict[str, str] = Field(
        default_factory=lambda: {"prefill": "prefill", "decode": "decode"},
        description="compose service, or Deployment, of each role that is scaled, JSON",
    )
    compose_command: str = Field(
        "docker compose", description="command that runs compose (compose)"
    )
    kubernetes_namespace: str = Field(
        "", description="namespace of the Deployments; default: the pod's own"
    )

    def scaling_policy(self) -> Policy:
        """Return the scaling policy, with this configuration's values for parameters it needs."""
        bounds = {name: getattr(self, name) for name in (*_NUMBERS, "scale_down_delay")}
        return scaling_policy(self.chosen(), self.costs(), bounds)

    def limit(self) -> Budget:
        """Return the budget, in which both pools keep their minimum."""
        return Budget(self.budget, self.min_prefill, self.min_decode)

    def settings(self) -> AutoscalerSettings:
        """Return the core's settings; HeadwayError for a budget under the minima."""
        return AutoscalerSettings(self.interval, self.staleness, self.limit(), self.model_name)

    def targets_by_role(self) -> Mapping[str, str]:
        """Return what the actuator scales, by role; HeadwayError for an unknown role."""
        for role in self.scaled_by_role:
            if role not in ROLES:
                raise invalid("scaled_by_role", role, f"one of {', '.join(ROLES)}")
        return self.scaled_by_role
