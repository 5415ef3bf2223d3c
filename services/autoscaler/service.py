"""The autoscaler: rate reports in, targets to the store and to whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import grpc
from prometheus_client import Gauge

from headway.core.autoscaler import AutoscalerCore, PublishTargets, RateReport
from headway.errors import Code, HeadwayError
from protos import autoscaler_pb2, autoscaler_pb2_grpc
from services.autoscaler.config import AutoscalerConfig
from services.runtime import wire
from services.runtime.driver import Driver
from services.runtime.service import Runtime

_Context = grpc.aio.ServicerContext[Any, Any]


class AutoscalerService(autoscaler_pb2_grpc.AutoscalerServicer):
    """The shell around :class:`AutoscalerCore`."""

    def __init__(self, runtime: Runtime[AutoscalerConfig]) -> None:
        self._runtime = runtime
        self._log = runtime.log
        self._driver: Driver[RateReport, PublishTargets] | None = None
        self._decided: PublishTargets | None = None
        self._unpublished = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._gauge = Gauge(
            "headway_autoscaler_target_instances",
            "Instances wanted",
            ["role"],
            registry=runtime.metrics,
        )
        config = runtime.config
        self._core = AutoscalerCore(
            config.policy().make(),
            now=runtime.clock.now(),
            interval=config.interval,
            staleness=config.staleness,
        )

    def member(self) -> Mapping[str, Any]:
        """What the membership says: nothing special."""
        return {}

    async def start(self) -> None:
        """Decide from now on."""
        self._driver = Driver(self._core, self._perform, self._runtime.clock)
        self._tasks.append(asyncio.create_task(self._publish()))

    async def drain(self) -> None:
        """Nothing runs."""

    async def stop(self) -> None:
        """Decide no more."""
        if self._driver is not None:
            self._driver.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _perform(self, action: PublishTargets) -> None:
        if self._decided is None or self._decided.targets != action.targets:
            self._log.debug("targets_decided", **asdict(action.targets))
        self._decided = action
        for role in ("prefill", "decode", "convertible", "unified"):
            self._gauge.labels(role).set(getattr(action.targets, f"num_{role}"))
        self._unpublished.set()

    async def _publish(self) -> None:
        """The newest decision to the store; one write at a time, older ones are skipped."""
        reached = True
        while True:
            await self._unpublished.wait()
            self._unpublished.clear()
            decided = self._decided
            if decided is None:
                continue
            said = {"policy": decided.policy, "decided_at": decided.decided_at}
            try:
                await self._runtime.store.publish_targets({**asdict(decided.targets), **said})
                reached = True
            except HeadwayError as error:
                if reached:
                    self._log.warning("targets_not_published", error=error.message)
                reached = False

    async def ReportRates(  # noqa: N802 (the proto's name)
        self, request: autoscaler_pb2.RateReport, context: _Context
    ) -> autoscaler_pb2.RateReportReply:
        """See ``protos/autoscaler.proto``."""
        try:
            report = RateReport(
                request.gateway_id,
                request.requests_per_s,
                request.input_tokens_per_s,
                request.output_tokens_per_s,
                request.observed_at,
                request.window,
            )
            if self._driver is None:  # the server listens before the service has started
                raise HeadwayError(Code.UNAVAILABLE, "still starting: report again soon")
            self._driver.post(report)
        except HeadwayError as error:
            await wire.abort(context, error)
        return autoscaler_pb2.RateReportReply()

    async def GetTargets(  # noqa: N802 (the proto's name)
        self, request: autoscaler_pb2.GetTargetsRequest, context: _Context
    ) -> autoscaler_pb2.Targets:
        """See ``protos/autoscaler.proto``."""
        decided = self._decided
        if decided is None:
            error = HeadwayError(Code.UNAVAILABLE, "nothing has been decided yet: ask again soon")
            await wire.abort(context, error)
        return autoscaler_pb2.Targets(
            **asdict(decided.targets), decided_at=decided.decided_at, policy=decided.policy
        )
