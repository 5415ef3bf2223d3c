"""How many instances of each role? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.scaling.fixed import Fixed, FixedParams
from headway.policies.scaling.protocol import Rates, Scaling, Targets

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {"fixed": Answer(Fixed, "TokenScale's baseline", FixedParams)}
)

__all__ = ["ANSWERS", "Rates", "Scaling", "Targets"]
