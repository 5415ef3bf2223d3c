"""Events and actions of the gateway's core, beyond ``headway.messages``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.errors import HeadwayError
from headway.messages import CancelStream, ToGateway, TokenBatch
from headway.request import FinishReason, Request, TokenLogprobs

# --- events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """A client asks for one output. The core fills in the fields of the attempt."""

    request: Request
    """Its ``request_id`` is new."""
    paced: bool = True
    """Whether its reader wants answering tokens at a reader's pace."""


@dataclass(frozen=True, slots=True)
class Release:
    """A client needs nothing more: it left, or a stop string was found. Repeats do nothing."""

    request_id: str


@dataclass(frozen=True, slots=True)
class WorkerDetached:
    """A worker's token stream broke: the tokens in flight are lost."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class SchedulerConnected:
    """A stream to a scheduler leader is open; it may know nothing of us."""


@dataclass(frozen=True, slots=True)
class SchedulerDisconnected:
    """The scheduler's stream broke; running requests go on."""


GatewayEvent = (
    Submit
    | Release
    | TokenBatch
    | WorkerDetached
    | SchedulerConnected
    | SchedulerDisconnected
    | ToGateway
)

# --- actions --------------------------------------------------------------------------


class Delivery(NamedTuple):
    """The next token of one request, or its end."""

    request_id: str
    token_id: int | None  # None for an end alone
    logprobs: TokenLogprobs | None
    finish_reason: FinishReason | None
    before: Sequence[int] = ()  # tokens that come with it and right before it
    num_cached: int = 0  # prompt tokens found in a prefix cache; with the first token alone


class Pause(NamedTuple):
    """The time between a moved request's last token from one worker and the next one's first."""

    seconds: float
    num_tokens: float  # tokens that it would have had meanwhile, at its pace until then


@dataclass(frozen=True, slots=True)
class Deliver:
    """Tokens for clients, in order; a finish reason ends its request.

    ``pauses`` belong to requests that have moved while they ran.
    """

    deliveries: Sequence[Delivery]
    pauses: Sequence[Pause] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """A request ended without a finish reason."""

    request_id: str
    error: HeadwayError


@dataclass(frozen=True, slots=True)
class CancelTokens:
    """Tokens of these streams are not wanted from the worker any more."""

    worker_id: str
    stream_ids: tuple[int, ...]


# A ``Request`` is submitted to the scheduler as it is.
GatewayAction = Request | CancelStream | CancelTokens | Deliver | Fail
