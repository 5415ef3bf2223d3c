"""Which role may call which method: the whole table."""

from __future__ import annotations

from collections.abc import Mapping

from headway.errors import Code, HeadwayError
from services.runtime.identity.roles import Caller, ServiceRole, listed

_ALL = frozenset(ServiceRole)
_AUTOSCALER = frozenset({ServiceRole.AUTOSCALER})
_CLIENT = frozenset({ServiceRole.CLIENT})
_GATEWAY = frozenset({ServiceRole.GATEWAY})
_OPERATOR = frozenset({ServiceRole.OPERATOR})
_SCHEDULER = frozenset({ServiceRole.SCHEDULER})
_SUPERVISOR = frozenset({ServiceRole.SUPERVISOR})
_WORKER = frozenset({ServiceRole.WORKER})

WHO_MAY_CALL: Mapping[str, frozenset[ServiceRole]] = {
    "/headway.v1.Gateway/Generate": _CLIENT,
    "/inference.GRPCInferenceService/ServerLive": _CLIENT,
    "/inference.GRPCInferenceService/ServerReady": _CLIENT,
    "/inference.GRPCInferenceService/ModelReady": _CLIENT,
    "/inference.GRPCInferenceService/ServerMetadata": _CLIENT,
    "/inference.GRPCInferenceService/ModelMetadata": _CLIENT,
    "/inference.GRPCInferenceService/ModelInfer": _CLIENT,
    "/inference.GRPCInferenceService/ModelStreamInfer": _CLIENT,
    "/headway.v1.TokenSink/Attach": _WORKER,
    "/headway.v1.Scheduler/Connect": _GATEWAY,
    "/headway.v1.Scheduler/Explain": _GATEWAY | _OPERATOR,
    "/headway.v1.Scheduler/Picture": _GATEWAY | _OPERATOR,
    "/headway.v1.Worker/Control": _SCHEDULER,
    "/headway.v1.Worker/TransferKv": _WORKER,
    "/headway.v1.Worker/SetRole": _SUPERVISOR | _OPERATOR,
    "/headway.v1.Standby/Activate": _SUPERVISOR | _OPERATOR,
    "/headway.v1.Predictor/Observe": _GATEWAY,
    "/headway.v1.Predictor/GetTable": _GATEWAY | _OPERATOR,
    "/headway.v1.Predictor/Predict": _WORKER,
    "/headway.v1.Autoscaler/ReportRates": _GATEWAY,
    "/headway.v1.Autoscaler/ReportFleet": _SCHEDULER,
    "/headway.v1.Autoscaler/GetTargets": _OPERATOR,
    "/headway.v1.Autoscaler/GetDecisions": _GATEWAY | _OPERATOR,
    "/headway.v1.Supervisor/Scale": _AUTOSCALER | _OPERATOR,
    "/headway.v1.Supervisor/ChangeRole": _AUTOSCALER | _OPERATOR,
    "/headway.v1.Supervisor/GetReplicas": _AUTOSCALER | _OPERATOR,
    "/externalscaler.ExternalScaler/IsActive": _OPERATOR,
    "/externalscaler.ExternalScaler/StreamIsActive": _OPERATOR,
    "/externalscaler.ExternalScaler/GetMetricSpec": _OPERATOR,
    "/externalscaler.ExternalScaler/GetMetrics": _OPERATOR,
    "/grpc.health.v1.Health/Check": _ALL,
    "/grpc.health.v1.Health/Watch": _ALL,
    "/grpc.health.v1.Health/List": _ALL,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ALL,
}
"""A method that is not here may be called by nobody."""


def require_access(caller: Caller, method: str) -> None:
    """Raise PERMISSION_DENIED if the caller may not call the method."""
    allowed = WHO_MAY_CALL.get(method, frozenset())
    if not caller.roles & allowed:
        who = listed(allowed) or "nobody"
        message = f"{caller.name} may not call {method}: {who} may"
        raise HeadwayError(Code.PERMISSION_DENIED, message)
