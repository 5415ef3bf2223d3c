"""Every fault and every interesting state that many histories of the live services reach."""

from __future__ import annotations

from proof.vopr.campaign import STATES as OF_COPIES
from proof.vopr.scenario import FaultKind

_ELSEWHERE = frozenset(
    {
        "a message is doubled",  # gRPC repeats none
        f"fault: {FaultKind.DOUBLE.name}",
        "a transfer of KV is tried again",  # no core hears of it
        "a worker refuses a deposed leader",  # as little
        "a client finds no gateway",  # it reads UNAVAILABLE
        "the autoscaler scales",  # neither it nor the predictor runs here yet
        "the predictor answers",
    }
)
_MORE = (
    "a sender waits for its reader",
    "an offer is acknowledged without KV",
    "the store goes back to an old snapshot",
    "the store is full",
)
STATES = (*(state for state in OF_COPIES if state not in _ELSEWHERE), *_MORE)
