"""The picker's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from headway.core.picker.events import PickerSettings
from headway.core.scheduler.settings import SchedulerSettings
from headway.policies.packing.flow_control import FlowControl
from services.endpoints.choosing import WatchIntervals, choosing_settings
from services.runtime.preset import ClassesConfig

_SCHEDULER, _PICKER = SchedulerSettings(), PickerSettings()


class PickerConfig(ClassesConfig):
    """Options of a picker. It needs no store and joins no cluster."""

    serves_clients: ClassVar[bool] = True

    endpoints_file: Path | None = Field(
        None, description="TOML file of endpoints, read again when it changes (docs/picker.md)"
    )
    endpoints: str = Field(
        "",
        description="endpoints without a file: host:port by commas; a name is all its addresses",
    )
    inference_pool: str = Field(
        "",
        description="InferencePool of Kubernetes whose ready pods are the endpoints: name, or "
        "namespace/name",
    )
    leader_of: str = Field(
        "",
        description="Service of Kubernetes that several pickers answer for, one at a time: name, "
        "or namespace/name",
    )
    advertise: str = Field("", description="address of this pod, for --leader-of")
    any_gateway: bool = Field(
        False,
        description="with certificates: serve gateways that show none, as most do; let the network "
        "keep others away",
    )
    model: str = Field(
        "", description="folder or hub id whose tokenizer counts prompts; default: by bytes"
    )
    longest_hold: float = Field(
        _PICKER.longest_hold,
        ge=0.0,
        le=3600.0,
        description="s that a request waits at most, then it goes to the best guess; keep it below "
        "Envoy's message_timeout",
    )
    num_fallbacks: int = Field(
        _PICKER.num_fallbacks, ge=0, le=16, description="endpoints named behind the first"
    )
    split_from: float = Field(
        _PICKER.split_from,
        ge=0.0,
        le=3600.0,
        description="s of a prompt on an endpoint with role decode, from which on one with role "
        "prefill computes it",
    )
    scrape_interval: float = Field(1.0, ge=0.05, le=60.0, description="s between scrapes")
    scrape_timeout: float = Field(
        1.0, ge=0.05, le=60.0, description="s without an answer after which a scrape counts as none"
    )
    resolve_interval: float = Field(
        5.0, ge=0.1, le=3600.0, description="s between look-ups of names, and of the file"
    )
    max_body: int = Field(
        64 << 20, ge=1, description="bytes of a request's body, then 413; it is held in memory"
    )
    max_bodies: int = Field(
        1 << 30, ge=1, description="bytes of all bodies that are held at once, then 503"
    )
    max_waiting: int = Field(
        _SCHEDULER.max_waiting, ge=1, description="requests in the window, then 429"
    )
    flow_control_cycles: int = Field(
        1000,
        ge=1,
        description="N_limit: cycles left over before throttling; 429 at twice as many. By default "
        "the window's size and --longest-hold bound the wait before that",
    )

    @model_validator(mode="after")
    def _some_endpoints(self) -> PickerConfig:
        if sum(map(bool, (self.endpoints_file, self.endpoints, self.inference_pool))) != 1:
            raise ValueError("give either --endpoints-file, --endpoints or --inference-pool")
        if self.any_gateway and not self.tls_cert:
            raise ValueError("--any-gateway needs --tls-cert, --tls-key and --tls-ca")
        if bool(self.leader_of) != bool(self.advertise):
            raise ValueError("give --leader-of and --advertise together, or neither")
        return self

    def scheduler_settings(self) -> SchedulerSettings:
        """Return the scheduler core's settings; HeadwayError for an unknown policy."""
        cycles = FlowControl(self.flow_control_cycles)
        limits = SchedulerSettings(flow_control=cycles, max_waiting=self.max_waiting)
        return choosing_settings(self, limits)

    def watch_intervals(self) -> WatchIntervals:
        """Return the intervals of the watch over endpoints."""
        return WatchIntervals(self.scrape_interval, self.scrape_timeout, self.resolve_interval)

    def picker_settings(self) -> PickerSettings:
        """Return the picker core's settings."""
        return PickerSettings(self.longest_hold, self.num_fallbacks, split_from=self.split_from)
