"""A scheduler's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from headway.core.scheduler.settings import Graces, SchedulerSettings
from headway.core.settings import policy_settings, require_policies
from headway.policies.packing.flow_control import FlowControl
from services.runtime.preset import PresetConfig

_DEFAULTS = SchedulerSettings()


class SchedulerConfig(PresetConfig):
    """Options of a scheduler: its limits, besides the preset."""

    reads_in_turn: ClassVar[bool] = True

    prefix_hits: bool = Field(
        True, description="prefer units that prefilled prompts with the same beginning"
    )
    max_waiting: int = Field(
        _DEFAULTS.max_waiting, ge=1, description="requests in the window, then 429"
    )
    flow_control_cycles: int = Field(
        _DEFAULTS.flow_control.num_cycles,
        ge=1,
        description="N_limit: cycles left over before throttling; 429 at twice as many",
    )
    kv_watermark: float = Field(
        _DEFAULTS.kv_watermark,
        ge=0.0,
        lt=1.0,
        description="share of a unit's KV blocks that a dispatch leaves free",
    )
    num_decisions_kept: int = Field(
        _DEFAULTS.num_decisions_kept,
        ge=0,
        le=1_000_000,
        description="last decisions kept for `headway explain`",
    )
    election_grace: float = Field(
        _DEFAULTS.graces.election,
        ge=0.0,
        description="longest wait for workers' snapshots after an election, s",
    )
    gateway_grace: float = Field(
        _DEFAULTS.graces.gateway,
        ge=0.0,
        description="seconds until the requests of a missing gateway are cancelled",
    )
    leader_ttl: float = Field(2.0, gt=0.0, description="the leader's lease, s")

    def settings(self) -> SchedulerSettings:
        """Return the core's settings; HeadwayError for an unknown policy or parameter."""
        limits = SchedulerSettings(
            flow_control=FlowControl(self.flow_control_cycles),
            max_waiting=self.max_waiting,
            kv_watermark=self.kv_watermark,
            num_decisions_kept=self.num_decisions_kept,
            graces=Graces(election=self.election_grace, gateway=self.gateway_grace),
            prefix_hits=self.prefix_hits,
        )
        preset, costs = self.chosen(), self.costs()
        require_policies(preset, costs)
        return policy_settings(preset, costs, limits).scheduler
