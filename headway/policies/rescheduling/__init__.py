"""Which running request moves where? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.rescheduling.current_load import CurrentLoad, CurrentLoadParams
from headway.policies.rescheduling.loads import simulate_future
from headway.policies.rescheduling.none import NoRescheduling
from headway.policies.rescheduling.protocol import (
    Horizon,
    Move,
    Requests,
    Rescheduling,
    UnitReport,
)
from headway.policies.rescheduling.star import Star, StarParams
from headway.policies.rescheduling.star_oracle import StarOracle

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "current-load": Answer(CurrentLoad, "STAR, without prediction", CurrentLoadParams),
        "none": Answer(NoRescheduling, "STAR's baseline"),
        "star": Answer(Star, "STAR, Algorithm 1", StarParams),
        "star-oracle": Answer(StarOracle, "STAR, Algorithm 1 with true lengths", StarParams),
    }
)

__all__ = [
    "ANSWERS",
    "Horizon",
    "Move",
    "Requests",
    "Rescheduling",
    "UnitReport",
    "simulate_future",
]
