"""An autoscaler's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from headway.core.policy_settings import Policy, policy_settings
from services.runtime.preset import PresetConfig


class AutoscalerConfig(PresetConfig):
    """A scaling policy by its name in the registry, and its numbers."""

    questions: ClassVar[tuple[str, ...]] = ("scaling",)

    scaling: str = Field("", description="how many instances of each role; default: the preset's")
    scaling_params: dict[str, Any] = Field(
        default_factory=dict, description="its parameters, JSON (fixed: the numbers below)"
    )
    num_prefill: int = Field(1, ge=0, description="prefill workers (fixed)")
    num_decode: int = Field(1, ge=0, description="decode workers (fixed)")
    num_convertible: int = Field(0, ge=0, description="convertible workers (fixed)")
    num_unified: int = Field(0, ge=0, description="unified workers (fixed)")
    interval: float = Field(1.0, gt=0.0, description="s between decisions")
    staleness: float = Field(5.0, gt=0.0, description="s after which a rate report counts no more")

    def policy(self) -> Policy:
        """The scaling policy; the fixed one reads its numbers from here."""
        names = ("num_prefill", "num_decode", "num_convertible", "num_unified")
        preset = self.chosen()
        if preset.scaling == "fixed":
            preset = self.chosen({"scaling": {name: getattr(self, name) for name in names}})
        return policy_settings(preset).scaling
