"""A scheduler's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

from pydantic import Field

from headway.core.scheduler.settings import Graces, SchedulerSettings
from headway.core.settings import policy_settings
from headway.policies import registry
from headway.policies.packing.flow_control import FlowControl
from services.runtime.preset import PresetConfig

LIVE_SBS = MappingProxyType({"watchdog_floor": 0.25})
"""Five passes of a small model are shorter than a busy machine's hiccup."""


class SchedulerConfig(PresetConfig):
    """Policies by their names in the registry, and limits."""

    questions: ClassVar[tuple[str, ...]] = ("dispatch", "packing", "placement", "rescheduling")

    dispatch: str = Field(
        "", description="when is an instance dispatched to; default: the preset's"
    )
    dispatch_params: dict[str, float | str] = Field(
        default_factory=dict, description='its parameters, JSON: {"default_pass_time": 0.05}'
    )
    packing: str = Field("", description="which DP unit prefills a request; default: the preset's")
    packing_params: dict[str, float | str] = Field(
        default_factory=dict, description='its parameters, JSON: {"order": "boost"}'
    )
    prefix_hits: bool = Field(
        True, description="pack prompts where others with the same beginning were prefilled"
    )
    placement: str = Field("", description="which DP unit decodes a request; default: the preset's")
    placement_params: dict[str, float] = Field(
        default_factory=dict, description='its parameters, JSON: {"k": 1.5}'
    )
    rescheduling: str = Field(
        "", description="which running requests move, and where to; default: the preset's"
    )
    rescheduling_params: dict[str, int | float] = Field(
        default_factory=dict, description='its parameters, JSON: {"interval": 5}'
    )
    max_waiting: int = Field(4096, ge=1, description="requests in the window, then 429")
    flow_control_cycles: int = Field(
        500, ge=1, description="N_limit: cycles left over before throttling; 429 at twice as many"
    )
    kv_watermark: float = Field(
        0.1, ge=0.0, lt=1.0, description="share of a unit's KV blocks that a dispatch leaves free"
    )
    num_decisions_kept: int = Field(
        1000, ge=0, le=1_000_000, description="last decisions that `headway explain` can tell of"
    )
    election_grace: float = Field(
        1.0, ge=0.0, description="longest wait for workers' snapshots after an election, s"
    )
    gateway_grace: float = Field(
        5.0, ge=0.0, description="a gateway away for longer has its requests cancelled, s"
    )
    leader_ttl: float = Field(2.0, gt=0.0, description="the leader's lease, s")
    max_queued_messages: int = Field(
        65_536, ge=1, description="messages to a peer that does not read, then it is dropped"
    )

    def settings(self) -> SchedulerSettings:
        """The core's share of this; refuses unknown policies and parameters (HeadwayError)."""
        preset = self.chosen()
        if preset.dispatch == "sbs":
            preset = self.chosen({"dispatch": LIVE_SBS})
        limits = SchedulerSettings(
            flow_control=FlowControl(self.flow_control_cycles),
            max_waiting=self.max_waiting,
            kv_watermark=self.kv_watermark,
            num_decisions_kept=self.num_decisions_kept,
            graces=Graces(election=self.election_grace, gateway=self.gateway_grace),
            prefix_hits=self.prefix_hits,
        )
        settings = policy_settings(preset, limits=limits).scheduler
        registry.make("dispatch", settings.dispatch, **settings.dispatch_params)
        registry.make("packing", settings.packing, **settings.packing_params)
        registry.make("placement", settings.placement, **settings.placement_params)
        registry.make("rescheduling", settings.rescheduling, **settings.rescheduling_params)
        return settings
