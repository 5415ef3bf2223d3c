"""Instants between hosts, whose clocks may differ by any number of seconds.

No host reads another host's clock. On the wire, instants are seconds after the sending of their
message: a request that arrived 2 s ago has -2. A receiver counts them from its own clock's
reading. What a message spends on its way, milliseconds, is not counted as waiting. Nothing is
estimated and nothing has to be kept: neither a wrong clock nor one that jumps can do harm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar, cast

from headway.messages import Dispatch, KvHeader, UnitBatch
from headway.request import Request

M = TypeVar("M")


def later(message: M, by: float) -> M:
    """Return the message with all of its instants ``by`` seconds later."""
    match message:
        case Request():
            return cast(M, _request_later(message, by))
        case Dispatch():
            batches = tuple(
                UnitBatch(batch.unit, tuple(_request_later(each, by) for each in batch.requests))
                for batch in message.batches
            )
            return cast(M, replace(message, batches=batches))
        case KvHeader():
            return cast(M, replace(message, request=_request_later(message.request, by)))
        case _:
            return message


def _request_later(request: Request, by: float) -> Request:
    return replace(
        request, arrival_at=request.arrival_at + by, deadline_at=request.deadline_at + by
    )
