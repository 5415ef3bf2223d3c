"""An autoscaler's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from services.runtime.config import ServiceConfig


class AutoscalerConfig(ServiceConfig):
    """A scaling policy by its name in the registry, and its numbers."""

    scaling: str = Field("fixed", description="how many instances of each role")
    scaling_params: dict[str, Any] = Field(
        default_factory=dict, description="its parameters, JSON (fixed: the numbers below)"
    )
    num_prefill: int = Field(1, ge=0, description="prefill workers (fixed)")
    num_decode: int = Field(1, ge=0, description="decode workers (fixed)")
    num_convertible: int = Field(0, ge=0, description="convertible workers (fixed)")
    num_unified: int = Field(0, ge=0, description="unified workers (fixed)")
    interval: float = Field(1.0, gt=0.0, description="s between decisions")
    staleness: float = Field(5.0, gt=0.0, description="s after which a rate report counts no more")

    def policy_params(self) -> dict[str, Any]:
        """What the policy is made with."""
        if self.scaling != "fixed":
            return self.scaling_params
        names = ("num_prefill", "num_decode", "num_convertible", "num_unified")
        return {**{name: getattr(self, name) for name in names}, **self.scaling_params}
