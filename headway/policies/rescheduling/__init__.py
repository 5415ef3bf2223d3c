"""Which running request moves where? One file per answer."""

from headway.policies.rescheduling.loads import simulate_future
from headway.policies.rescheduling.protocol import (
    Horizon,
    Move,
    Requests,
    Rescheduling,
    UnitReport,
    yielding_first,
)

__all__ = [
    "Horizon",
    "Move",
    "Requests",
    "Rescheduling",
    "UnitReport",
    "simulate_future",
    "yielding_first",
]
