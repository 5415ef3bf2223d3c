"""Events and actions of the scheduler's core, and its explanations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headway.cluster import UnitId
from headway.cost.costs import Constant
from headway.messages import (
    CancelStream,
    FromWorker,
    Order,
    ToGateway,
)
from headway.policies.dispatch.protocol import OwnUnit
from headway.request import Request, StreamKey

# --- records for the next leader --------------------------------------------------------


class SavedRequest(NamedTuple):
    """Facts of one live attempt that no worker and no gateway reports.

    Instants are in seconds since the epoch. Saved ones are by the store's clock, which leaders on
    all hosts can read.
    """

    key: StreamKey
    worker_id: str
    """Its worker, "" while it waits."""
    cycle: int
    """Its window's cycle when it entered, -1 before."""
    since: float
    moved_at: float
    target: UnitId | None
    """The unit it moves to."""
    relocating: bool
    """True if it runs while it moves."""

    def later(self, by: float) -> SavedRequest:
        """Return it with its instants ``by`` seconds later."""
        return self._replace(since=self.since + by, moved_at=self.moved_at + by)


class Learned(NamedTuple):
    """Measurements of one model; ``cycle`` is its window's.

    ``velocity``: prompt tokens per second of one instance. ``gamma``: γ-Ada's last fit, 1/s. 0 for
    unknown.
    """

    model: str
    cycle: int
    mean_pass_time: float
    dispatch_latency: float
    velocity: float
    gamma: float


@dataclass(frozen=True, slots=True)
class Persist:
    """An order to save changed requests for the next leader, and to delete ended ones."""

    saved: tuple[SavedRequest, ...] = ()
    ended: tuple[StreamKey, ...] = ()
    learned: tuple[Learned, ...] = ()


# --- events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Elected:
    """The start of a term; ``worker_ids`` are the members that have not reported yet.

    ``saved`` and ``learned``: records of earlier leaders, which may be slightly outdated.
    """

    fencing_token: int
    worker_ids: tuple[str, ...]
    saved: tuple[SavedRequest, ...] = ()
    learned: tuple[Learned, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayConnected:
    """A gateway's new stream; it resubmits all requests that have not ended."""

    gateway_id: str


@dataclass(frozen=True, slots=True)
class GatewayDisconnected:
    """The end of a gateway's stream."""

    gateway_id: str


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A message of a worker; the first one on a new control stream is a snapshot."""

    worker_id: str
    message: FromWorker


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The end of a worker's control stream or of its lease."""

    worker_id: str
    reason: str


SchedulerEvent = (
    Elected
    | Request
    | CancelStream
    | GatewayConnected
    | GatewayDisconnected
    | WorkerReported
    | WorkerGone
)

# --- actions --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendToWorker:
    """A message for a worker."""

    worker_id: str
    message: Order


@dataclass(frozen=True, slots=True)
class SendToGateway:
    """A message for a gateway; dropped if it is not connected (it will ask again)."""

    gateway_id: str
    message: ToGateway


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for the operator's log."""

    event: str
    worker_id: str = ""
    request_id: str = ""
    detail: str = ""


class Considered(NamedTuple):
    """The state of one unit before the decision: (C_avail, C_chunk) for a dispatch, else (B, K).

    ``predicted_tokens``: K_pred, None where no load is predicted. ``score``: what a placement
    compared, as in ``Chosen``; () where it compares nothing, or reads each of several requests.
    """

    unit: UnitId
    load: tuple[int, ...]
    num_free_blocks: int
    predicted_tokens: float | None = None
    score: tuple[float, ...] = ()


class Chosen(NamedTuple):
    """The unit chosen for one request, and that unit's score then.

    A dispatch scores (capacity left,), a placement the value that its policy minimises. ``waited``:
    seconds since the request was submitted or prefilled. ``own``: why a dispatch chose this unit
    for what it holds of the prompt; None where that was no reason.
    """

    key: StreamKey
    request_id: str
    unit: UnitId
    score: tuple[float, ...]
    waited: float
    own: OwnUnit | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision and its reasons; the core keeps the last ones."""

    question: str
    """Dispatch, placement, boundary (where an answer begins), rescheduling or drain."""
    decided_at: float
    model: str
    rule: str
    """The readiness rule of a dispatch, else the policy's name."""
    considered: tuple[Considered, ...]
    chosen: tuple[Chosen, ...]
    num_left: int
    """Requests that were considered and still wait."""
    constants: tuple[Constant, ...] = ()
    """The constants that the policies used, if they read any costs."""


SchedulerAction = SendToWorker | SendToGateway | Persist | Note | Decision
