"""A scheduler's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from types import MappingProxyType

from pydantic import Field

from headway.core.scheduler_state import SchedulerSettings
from headway.policies import registry
from headway.policies.packing.flow_control import FlowControl
from services.runtime.config import ServiceConfig

LIVE_SBS = MappingProxyType({"watchdog_floor": 0.25})
"""Five passes of a small model are shorter than a busy machine's hiccup."""


class SchedulerConfig(ServiceConfig):
    """Policies by their names in the registry, and limits."""

    dispatch: str = Field("sbs", description="when is an instance dispatched to")
    dispatch_params: dict[str, float | str] = Field(
        default_factory=dict, description='its parameters, JSON: {"default_pass_time": 0.05}'
    )
    packing: str = Field("pbaa", description="which DP unit prefills a request")
    placement: str = Field("iqr-lex", description="which DP unit decodes a request")
    placement_params: dict[str, float] = Field(
        default_factory=dict, description='its parameters, JSON: {"k": 1.5}'
    )
    rescheduling: str = Field("none", description="which running requests move, and where to")
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
    election_grace: float = Field(
        1.0, ge=0.0, description="longest wait for workers' snapshots after an election, s"
    )
    gateway_grace: float = Field(
        5.0, ge=0.0, description="a gateway away for longer has its requests cancelled, s"
    )
    leader_ttl: float = Field(3.0, gt=0.0, description="the leader's lease, s")
    max_queued_messages: int = Field(
        65_536, ge=1, description="messages to a peer that does not read, then it is dropped"
    )

    def settings(self) -> SchedulerSettings:
        """The core's share of this; refuses unknown policies and parameters (HeadwayError)."""
        dispatch_params = dict(self.dispatch_params)
        if self.dispatch == "sbs":
            dispatch_params = {**LIVE_SBS, **dispatch_params}
        registry.make("dispatch", self.dispatch, **dispatch_params)
        registry.make("packing", self.packing)
        registry.make("placement", self.placement, **self.placement_params)
        registry.make("rescheduling", self.rescheduling, **self.rescheduling_params)
        return SchedulerSettings(
            dispatch=self.dispatch,
            dispatch_params=MappingProxyType(dispatch_params),
            packing=self.packing,
            placement=self.placement,
            placement_params=MappingProxyType(dict(self.placement_params)),
            rescheduling=self.rescheduling,
            rescheduling_params=MappingProxyType(dict(self.rescheduling_params)),
            flow_control=FlowControl(self.flow_control_cycles),
            max_waiting=self.max_waiting,
            kv_watermark=self.kv_watermark,
            election_grace=self.election_grace,
            gateway_grace=self.gateway_grace,
        )
