"""The autoscaler's service: receives reports, publishes targets, and drives an actuator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import grpc

from headway.core.autoscaler.core import AutoscalerCore
from headway.core.autoscaler.events import (
    ROLES,
    AutoscalerEvent,
    OrderedReport,
    PublishTargets,
)
from headway.core.autoscaler.starts import StartsReport
from headway.errors import Code, HeadwayError
from protos import autoscaler_pb2, autoscaler_pb2_grpc
from services.autoscaler.actuators import Actuator, make_actuator
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.decisions import Decisions
from services.autoscaler.keda import KedaScaler
from services.autoscaler.start_metrics import StartMetrics
from services.autoscaler.steering import Steering
from services.runtime import wire
from services.runtime.driver import Driver
from services.runtime.essential import end_tasks, essential
from services.runtime.failpoints import failpoint
from services.runtime.identity.guard import require_id
from services.runtime.service import Runtime

_Context = grpc.aio.ServicerContext[Any, Any]


async def build(runtime: Runtime[AutoscalerConfig]) -> AutoscalerService:
    """Return the service, with its RPCs registered."""
    service = AutoscalerService(runtime, make_actuator(runtime.config, runtime.store))
    runtime.server.add(service)
    config = runtime.config
    keda = KedaScaler(
        service.decisions,
        config.model_name,
        runtime.clock.now,
        staleness=config.interval + config.staleness,
    )
    runtime.server.add(keda)
    return service


class AutoscalerService(autoscaler_pb2_grpc.AutoscalerServicer):
    """The shell around :class:`AutoscalerCore`."""

    def __init__(self, runtime: Runtime[AutoscalerConfig], actuator: Actuator) -> None:
        config = runtime.config
        self._runtime = runtime
        self._log = runtime.log
        self._driver: Driver[AutoscalerEvent, PublishTargets] | None = None
        self._unpublished = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.decisions = Decisions(config.num_decisions, runtime.log, runtime.metrics)
        self._starts = StartMetrics(runtime.metrics)
        self._steering = Steering(
            actuator,
            lambda: self.decisions.newest,
            self._post,
            runtime.log,
            interval=config.interval,
            changes_roles=config.change_roles,
        )
        self._core = AutoscalerCore(
            config.scaling_policy().make(),
            now=runtime.clock.now(),
            settings=config.settings(),
        )

    def member(self) -> Mapping[str, Any]:
        """Describe this autoscaler for the membership: the model it scales, if it is one of
        several."""
        return {"model": self._runtime.config.model_name}

    async def start(self) -> None:
        """Start deciding from the current number of instances."""
        policy = self._runtime.config.scaling_policy().answer
        if policy.left_out:
            self._log.warning("policy_in_part", policy=policy.name, left_out=policy.left_out)
        ordered = await self._steering.begin()
        if ordered == OrderedReport():
            ordered = await self._read_back()
        self._driver = Driver(self._core, self._perform, self._runtime.clock)
        if ordered != OrderedReport():
            self._driver.post(ordered)
        self._tasks.append(essential(self._publish(), "publishing"))
        self._steering.start()

    async def _read_back(self) -> OrderedReport:
        """Return an earlier autoscaler's targets; empty if missing or unreadable."""
        try:
            said = await self._runtime.store.read_targets() or {}
            return OrderedReport(**{f"num_{role}": said.get(f"num_{role}") for role in ROLES})
        except (HeadwayError, TypeError) as error:
            self._log.warning("targets_not_read_back", error=str(error))
            return OrderedReport()

    async def drain(self) -> None:
        """Do nothing: there is nothing to wait for."""

    async def stop(self) -> None:
        """Stop deciding."""
        await self._steering.stop()
        if self._driver is not None:
            self._driver.close()
        await end_tasks(*self._tasks)

    def _post(self, event: AutoscalerEvent) -> None:
        if self._driver is None:  # the server listens before the service has started
            raise HeadwayError(Code.UNAVAILABLE, "still starting: report again soon")
        if isinstance(event, StartsReport):
            self._starts.add(event)
        self._driver.post(event)

    def _perform(self, action: PublishTargets) -> None:
        self.decisions.add(action)
        self._unpublished.set()

    async def _publish(self) -> None:
        """Write the newest decision to the store, one write at a time; skip older ones."""
        reached = True
        while True:
            await self._unpublished.wait()
            self._unpublished.clear()
            decided = self.decisions.newest
            if decided is None:
                continue
            said = {"policy": decided.policy, "decided_at": decided.decided_at}
            failpoint("autoscaler.targets.decided")
            try:
                await self._runtime.store.publish_targets({**asdict(decided.targets), **said})
                reached = True
            except HeadwayError as error:
                if reached:
                    self._log.warning("targets_not_published", error=error.message)
                reached = False

    # --- RPCs: see ``protos/autoscaler.proto`` ------------------------------------------

    async def ReportRates(  # noqa: N802 (the proto's name)
        self, request: autoscaler_pb2.RateReport, context: _Context
    ) -> autoscaler_pb2.RateReportReply:
        """Take a gateway's rates."""
        require_id(context, request.gateway_id)
        self._post(wire.RATE_REPORT.unpack(request))
        return autoscaler_pb2.RateReportReply()

    async def ReportFleet(  # noqa: N802 (the proto's name)
        self, request: autoscaler_pb2.FleetReport, context: _Context
    ) -> autoscaler_pb2.FleetReportReply:
        """Take the leading scheduler's view of all workers."""
        self._post(wire.unpack_fleet(request))
        return autoscaler_pb2.FleetReportReply()

    async def GetTargets(  # noqa: N802 (the proto's name)
        self, request: autoscaler_pb2.GetTargetsRequest, context: _Context
    ) -> autoscaler_pb2.Targets:
        """Return the current targets."""
        decided = self.decisions.newest
        if decided is None:
            raise HeadwayError(Code.UNAVAILABLE, "nothing has been decided yet: ask again soon")
        return wire.pack_targets(decided)

    async def GetDecisions(  # noqa: N802 (the proto's name)
        self, request: autoscaler_pb2.GetDecisionsRequest, context: _Context
    ) -> autoscaler_pb2.ScalingDecisions:
        """Return the newest decisions with the figures they are based on."""
        last = self.decisions.last(request.num_decisions)
        return autoscaler_pb2.ScalingDecisions(decisions=map(wire.pack_decision, last))
