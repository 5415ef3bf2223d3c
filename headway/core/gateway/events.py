"""Events and actions of the gateway's core, beyond ``headway.messages``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.errors import HeadwayError
from headway.messages import ToGateway, TokenBatch, ToScheduler
from headway.request import FinishReason, Request, TokenLogprobs

# --- events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """A client's request for one output. The core fills in the fields of the attempt."""

    request: Request
    """The request, with a new ``request_id``."""
    is_read: bool = True
    """True if its client reads the answer as it comes, so that it may be paced."""
    max_turns: int = 0
    """Its session is over with the turn of this number; 0: no bound."""
    may_be_cut: bool = False
    """True if its deadline ends it with what it has, rather than with an error."""


@dataclass(frozen=True, slots=True)
class Release:
    """The end of a client's interest: it left, or a stop string was found. Repeats do nothing."""

    request_id: str


@dataclass(frozen=True, slots=True)
class WorkerDetached:
    """The end of a worker's token stream: the tokens in flight are lost."""

    worker_id: str
    process_id: str = ""
    """The worker's process, by the name that the scheduler gives it; "" if it is not known."""


@dataclass(frozen=True, slots=True)
class WorkerBack:
    """A new token stream of a worker's process that had one before: it has not died."""

    worker_id: str
    process_id: str = ""
    """The worker's process, as above."""


@dataclass(frozen=True, slots=True)
class SchedulerConnected:
    """A new stream to a scheduler leader, which may not know our requests."""


@dataclass(frozen=True, slots=True)
class SchedulerDisconnected:
    """The end of the scheduler's stream; running requests continue."""


@dataclass(frozen=True, slots=True)
class WorkersMissing:
    """Why models cannot be served, by name, and "" for all of them: all that is known of it."""

    reasons: Mapping[str, str]


GatewayEvent = (
    Submit
    | Release
    | TokenBatch
    | WorkerBack
    | WorkerDetached
    | SchedulerConnected
    | SchedulerDisconnected
    | WorkersMissing
    | ToGateway
)

# --- actions --------------------------------------------------------------------------


class Delivery(NamedTuple):
    """The next token of one request, or its end."""

    request_id: str
    token_id: int | None  # None for an end alone
    logprobs: TokenLogprobs | None
    finish_reason: FinishReason | None
    before: Sequence[int] = ()  # tokens delivered with it, right before it
    num_cached: int = 0  # prompt tokens found in a prefix cache; with the first token alone
    levels_spent: int = 0  # MemGuard's, which the next attempt begins with
    decision: str = ""  # why it was placed where it is; with the first token alone
    is_cut: bool = False  # the end of a request that its deadline has ended

    def singles(self) -> Iterator[Delivery]:
        """Yield one token at a time; the last one keeps everything but ``before``."""
        for token_id in self.before:
            yield Delivery(self.request_id, token_id, None, None)
        yield self._replace(before=())


class Pause(NamedTuple):
    """The pause in a moved request's tokens, between its old worker and its new one."""

    seconds: float
    num_tokens: float  # tokens it would have had at its previous pace


@dataclass(frozen=True, slots=True)
class Deliver:
    """Tokens for clients, in order; a finish reason ends its request.

    ``pauses`` belong to requests that have moved while they ran.
    """

    deliveries: Sequence[Delivery]
    pauses: Sequence[Pause] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The end of a request without a finish reason."""

    request_id: str
    error: HeadwayError


@dataclass(frozen=True, slots=True)
class CancelTokens:
    """A cancel of these streams at the worker."""

    worker_id: str
    stream_ids: tuple[int, ...]


# A ``Request`` is submitted to the scheduler as it is.
GatewayAction = ToScheduler | CancelTokens | Deliver | Fail
