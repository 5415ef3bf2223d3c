"""The scheduler's service: a candidate for election that leads while it holds the lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from headway.core.scheduler.picture import SchedulerStatus
from headway.policies import registry
from headway.policies.readers import constants_of
from services.runtime.service import Runtime
from services.scheduler.config import SchedulerConfig
from services.scheduler.gateway_link import GatewayLinks
from services.scheduler.leadership import Leadership
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.term import Term


async def build(runtime: Runtime[SchedulerConfig]) -> SchedulerService:
    """Return the service, with its RPCs registered."""
    service = SchedulerService(runtime, runtime.metrics)
    runtime.server.add(service.links)
    return service


class SchedulerService:
    """The shell around :class:`SchedulerCore`; losing the lease makes it a standby again."""

    def __init__(self, runtime: Runtime[SchedulerConfig], metrics: CollectorRegistry) -> None:
        self._runtime = runtime
        self._settings = replace(runtime.config.settings(), persists=True, measures_work=True)
        self._term: Term | None = None
        self._metrics = SchedulerMetrics(self._status, metrics, self._num_closed_links)
        self._leadership: Leadership | None = None
        self.links = GatewayLinks(self._leader_address, runtime.clock.now)

    @property
    def leads(self) -> bool:
        """True if a term is in progress here."""
        return self._term is not None and self._term.has_begun

    def member(self) -> Mapping[str, Any]:
        """Describe this scheduler for the membership: no further fields; the lease names the
        leader."""
        return {}

    async def start(self) -> None:
        """Become a candidate."""
        runtime, config = self._runtime, self._runtime.config
        self._say_what_is_assumed()
        self._leadership = Leadership(
            runtime.store,
            config.service_id,
            runtime.address,
            config.leader_ttl,
            runtime.clock,
            elected=self._elected,
            deposed=self._deposed,
            draw=runtime.machine.draw,
        )
        self._leadership.start()

    def _say_what_is_assumed(self) -> None:
        """Tell the operator which constants of dispatch are of another machine."""
        config, settings = self._runtime.config, self._settings
        if not (config.assumed and registry.find("dispatch", settings.dispatch).reads_profile):
            return
        policy = registry.make("dispatch", settings.dispatch, **settings.dispatch_params)
        constants = {each.name: each.value for each in constants_of(policy)}
        self._runtime.log.warning(
            "profile_assumed",
            policy=f"dispatch {settings.dispatch}",
            profile=config.assumed,
            **constants,
            until="workers have measured theirs",
            instead="--profile FILE",
        )

    async def drain(self) -> None:
        """Release the lease: gateways and workers connect to the next leader."""
        await self.stop()

    async def stop(self) -> None:
        """Close all streams; a repeated call does nothing."""
        if self._leadership is not None:
            await self._leadership.stop()

    async def _elected(self, fencing_token: int) -> None:
        assert self._leadership is not None, "it has elected this scheduler"
        self._term = Term(
            self._runtime,
            self._settings,
            self.links,
            self._metrics,
            fencing_token,
            self._leadership.resign,
        )
        await self._term.begin()

    async def _deposed(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            await term.end()

    def _status(self) -> SchedulerStatus | None:
        return self._term.status if self._term is not None else None

    def _num_closed_links(self) -> int:
        return self._term.num_closed_links if self._term is not None else 0

    def _leader_address(self) -> str:
        """Return where to go instead: "" for nowhere, also while this one is about to lead."""
        address = self._leadership.leader_address if self._leadership is not None else ""
        return "" if address == self._runtime.address else address
