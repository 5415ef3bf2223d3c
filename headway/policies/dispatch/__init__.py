"""When is an instance given requests, and which instance? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.dispatch.immediate import Immediate, ImmediateParams
from headway.policies.dispatch.protocol import Dispatching, Expiry, InstanceLoad, Turn, Waiting
from headway.policies.dispatch.sbs import SbsParams, StaggeredBatch
from headway.policies.dispatch.tokenscale import TokenScaleRouting, TokenScaleRoutingParams

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "immediate": Answer(Immediate, "the field's routers", ImmediateParams),
        "sbs": Answer(StaggeredBatch, "SBS, Algorithm 1 and section 4.1", SbsParams),
        "tokenscale": Answer(TokenScaleRouting, "TokenScale, algorithm 1", TokenScaleRoutingParams),
    }
)

__all__ = ["ANSWERS", "Dispatching", "Expiry", "InstanceLoad", "Turn", "Waiting"]
