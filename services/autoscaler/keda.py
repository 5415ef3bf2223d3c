"""KEDA's external scaler: our targets as a metric that the HPA divides again.

Each role is one metric. Its value is the number of instances wanted and its target is 1, so the
HPA's ``⌈value / target⌉`` is our number (metric type ``AverageValue``, KEDA's default). The role
and, where needed, the model come from ``scalerMetadata``. Without a decision, or if the last one is
stale, the metric has no value (UNAVAILABLE). KEDA and the HPA then keep the current number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from headway.core.autoscaler.events import ROLES, PublishTargets
from headway.errors import Code, HeadwayError, invalid
from protos import externalscaler_pb2, externalscaler_pb2_grpc
from services.autoscaler.decisions import Decisions

_TARGET = 1
_Context = grpc.aio.ServicerContext[Any, Any]


class KedaScaler(externalscaler_pb2_grpc.ExternalScalerServicer):
    """KEDA's scaler, which answers from memory. ``staleness``: greatest age of a decision (s)."""

    def __init__(
        self,
        decisions: Decisions,
        model_name: str,
        now: Callable[[], float],
        *,
        staleness: float,
    ) -> None:
        self._decisions = decisions
        self._model_name = model_name
        self._now = now
        self._staleness = staleness

    async def IsActive(  # noqa: N802 (the proto's name)
        self, request: externalscaler_pb2.ScaledObjectRef, context: _Context
    ) -> externalscaler_pb2.IsActiveResponse:
        """Return whether any instance is wanted."""
        return externalscaler_pb2.IsActiveResponse(result=self._wanted(request) > 0)

    async def StreamIsActive(  # noqa: N802 (the proto's name)
        self, request: externalscaler_pb2.ScaledObjectRef, context: _Context
    ) -> AsyncIterator[externalscaler_pb2.IsActiveResponse]:
        """Yield whether any instance is wanted: at once, and whenever that changes."""
        before: bool | None = None
        while True:
            is_active = self._wanted(request) > 0
            if is_active is not before:
                before = is_active
                yield externalscaler_pb2.IsActiveResponse(result=is_active)
            await self._decisions.changed()

    async def GetMetricSpec(  # noqa: N802 (the proto's name)
        self, request: externalscaler_pb2.ScaledObjectRef, context: _Context
    ) -> externalscaler_pb2.GetMetricSpecResponse:
        """Return one metric per role; this needs no decision."""
        role = self._role(request)
        spec = externalscaler_pb2.MetricSpec(
            metricName=_metric(role), targetSize=_TARGET, targetSizeFloat=_TARGET
        )
        return externalscaler_pb2.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(  # noqa: N802 (the proto's name)
        self, request: externalscaler_pb2.GetMetricsRequest, context: _Context
    ) -> externalscaler_pb2.GetMetricsResponse:
        """Return the number of instances wanted."""
        value = self._wanted(request.scaledObjectRef) * _TARGET
        answer = externalscaler_pb2.MetricValue(
            metricName=request.metricName or _metric(self._role(request.scaledObjectRef)),
            metricValue=value,
            metricValueFloat=value,
        )
        return externalscaler_pb2.GetMetricsResponse(metricValues=[answer])

    def _wanted(self, scaled_object: externalscaler_pb2.ScaledObjectRef) -> int:
        wanted: int = getattr(self._fresh().targets, f"num_{self._role(scaled_object)}")
        return wanted

    def _role(self, scaled_object: externalscaler_pb2.ScaledObjectRef) -> str:
        said = scaled_object.scalerMetadata
        role, model = said.get("role", ""), said.get("model", "")
        if role not in ROLES:
            raise invalid("scalerMetadata role", role, f"one of {', '.join(ROLES)}")
        if model and self._model_name and model != self._model_name:
            message = (
                f"scalerMetadata model is {model!r}; this autoscaler is for {self._model_name!r}"
            )
            raise HeadwayError(Code.NOT_FOUND, message)
        return role

    def _fresh(self) -> PublishTargets:
        decided = self._decisions.newest
        if decided is None or self._now() - decided.decided_at > self._staleness:
            raise HeadwayError(Code.UNAVAILABLE, "no fresh decision: ask again soon")
        return decided


def _metric(role: str) -> str:
    return f"headway-{role}-instances"
