"""How many instances of each role? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.scaling.aibrix import Aibrix, AibrixParams
from headway.policies.scaling.blitzscale import BlitzScale, BlitzScaleParams
from headway.policies.scaling.distserve import DistServe, DistServeParams
from headway.policies.scaling.fixed import Fixed, FixedParams
from headway.policies.scaling.meter import RateMeter
from headway.policies.scaling.protocol import (
    Fleet,
    PoolLoad,
    Rates,
    Scaling,
    Targets,
    WorkSample,
)
from headway.policies.scaling.tokenscale import TokenScale, TokenScaleParams
from headway.policies.scaling.utilisation import Utilisation, UtilisationParams

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "aibrix": Answer(Aibrix, "AIBrix; TokenScale's baseline", AibrixParams),
        "blitzscale": Answer(
            BlitzScale, "BlitzScale, OSDI '25; TokenScale's baseline", BlitzScaleParams
        ),
        "distserve": Answer(
            DistServe, "DistServe, OSDI '24; TokenScale's baseline", DistServeParams
        ),
        "fixed": Answer(Fixed, "TokenScale's baseline", FixedParams),
        "tokenscale": Answer(TokenScale, "TokenScale, section IV-C", TokenScaleParams),
        "utilisation": Answer(
            Utilisation, "Knative's KPA; TokenScale's baseline", UtilisationParams
        ),
    }
)

__all__ = [
    "ANSWERS",
    "Fleet",
    "PoolLoad",
    "RateMeter",
    "Rates",
    "Scaling",
    "Targets",
    "WorkSample",
]
