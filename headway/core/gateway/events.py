"""What a gateway's core is told, and what it wants done, beyond ``headway.messages``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.errors import HeadwayError
from headway.messages import CancelStream, ToGateway, TokenBatch
from headway.request import FinishReason, Request, SamplingParams, TokenLogprobs

# --- events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """A client asks for one output; ``request_id`` is new, ``arrival_at`` in epoch seconds.

    ``predicted_output_tokens`` is 0 where nothing is known. ``reasons``: whether reasoning comes
    before the answer. ``paced``: whether its reader wants answering tokens at a reader's pace.
    """

    request_id: str
    model: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    arrival_at: float
    predicted_output_tokens: float = 0.0
    reasons: bool = False
    paced: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """The client needs nothing more: it left, or a stop string was found. Repeats do nothing."""

    request_id: str


@dataclass(frozen=True, slots=True)
class WorkerDetached:
    """A worker's token stream broke: what it had in flight is lost."""

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
    """The next token of one request, or its end; ``token_id`` is None for an end alone.

    ``before``: tokens that come with it and right before it. ``num_cached``: tokens of its prompt
    that were in a worker's prefix cache, with the first token alone.
    """

    request_id: str
    token_id: int | None
    logprobs: TokenLogprobs | None
    finish_reason: FinishReason | None
    before: Sequence[int] = ()
    num_cached: int = 0


class Pause(NamedTuple):
    """Between a moved request's last token from one worker and its first from the next.

    ``num_tokens``: how many it would have had meanwhile, at its pace until then.
    """

    seconds: float
    num_tokens: float


@dataclass(frozen=True, slots=True)
class Deliver:
    """Tokens for clients, in order; a finish reason is a request's last word.

    ``pauses``: of requests that have moved while they ran.
    """

    deliveries: Sequence[Delivery]
    pauses: Sequence[Pause] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The request ended otherwise; this is its last word."""

    request_id: str
    error: HeadwayError


@dataclass(frozen=True, slots=True)
class CancelTokens:
    """Tell a worker that these streams' tokens are not wanted."""

    worker_id: str
    stream_ids: tuple[int, ...]


# A ``Request`` is submitted to the scheduler as it is.
GatewayAction = Request | CancelStream | CancelTokens | Deliver | Fail
