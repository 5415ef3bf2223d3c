"""Which running request moves where? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer

ANSWERS: Mapping[str, Answer] = MappingProxyType({})

__all__ = ["ANSWERS"]
