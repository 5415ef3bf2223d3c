"""Moments in the life of a request, and how a worker tells its gateway of them."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class MomentKind(Enum):
    """Something that happened to a request; the gateway saw the first nine itself."""

    SENT = "handed to the scheduler"
    PLACED = "placed on a worker"
    CHOSEN = "its worker was chosen"
    FIRST_TOKEN = "its first token came"
    LEFT = "the last token of this worker came"
    CONTINUES = "a token of another worker came"
    LOST = "its attempt was lost; another one follows"
    PREDICTED = "its output length was predicted"
    PACED = "tokens were held for its reader"

    QUEUED = "queued on a worker"
    ADMITTED = "has KV blocks and takes part in passes"
    COMPUTED = "all of its tokens are computed, and it draws more"
    PREEMPTED = "lost its KV blocks, and its KV has to be computed again"
    SWAPS_OUT = "lost its KV blocks; its KV goes to host memory"
    SWAPS_IN = "has KV blocks again; its KV comes back from host memory"
    SWAPPED = "its KV was copied"
    KV_LOST = "the copy of its KV failed"
    PREFILLED = "its prompt is computed, and it waits for a worker that decodes it"
    DEPARTS = "stopped, while the remainder of its KV goes to another worker"
    ARRIVING = "its KV began to arrive"
    RUNS_ON = "goes on with its KV"
    WAITS_ON = "its KV is in host memory, and it waits for blocks"
    HOLDS_ON = "its KV could not be sent; it waits for another worker"


class Mark(NamedTuple):
    """A worker's news of one request, for the gateway that has its stream.

    ``at``: seconds since the epoch by the host's clock. ``amount``: tokens to compute (ADMITTED,
    SWAPPED), tokens lost (PREEMPTED, SWAPS_OUT), passes since its admission (COMPUTED), tokens
    of the whole output (PREDICTED), else 0.
    """

    stream_id: int
    kind: MomentKind
    at: float
    amount: int = 0
    cause: str = ""


class Moment(NamedTuple):
    """Something that happened to a request, ``at`` microseconds after its arrival.

    ``worker_id``: the worker that it concerns, "" for none. ``amount`` and ``cause``: as in a Mark;
    ``amount`` of CHOSEN: the microseconds that it waited for the choice.
    """

    at: int
    kind: MomentKind
    worker_id: str = ""
    amount: int = 0
    cause: str = ""


_SEEN = frozenset(
    {
        *(MomentKind.SENT, MomentKind.PLACED, MomentKind.FIRST_TOKEN, MomentKind.LEFT),
        *(MomentKind.CHOSEN, MomentKind.CONTINUES, MomentKind.LOST, MomentKind.PACED),
    }
)
"""Moments that a gateway saw itself: their instants are right."""
_HAS_KV = frozenset({MomentKind.RUNS_ON, MomentKind.WAITS_ON})


def way_to(worker_id: str) -> str:
    """Return the cause of a departure."""
    return f"to {worker_id}"


def add_news(moments: list[Moment], news: Moment) -> None:
    """Append a worker's news, and correct instants that it shows to be late.

    The way of a message makes instants later and never earlier. A worker's news come in the order
    in which they happened, so nothing that it told before happened after this. And a request has
    left a worker before another one has all of its KV.
    """
    if news.kind is MomentKind.DEPARTS:
        had_at = _had_at(moments, news)
        if had_at is not None and had_at <= news.at:
            news = news._replace(at=max(0, had_at - 1))
    elif news.kind in _HAS_KV:
        place = _departure_to(moments, news.worker_id)
        if place is not None and moments[place].at >= news.at:
            moments[place] = moments[place]._replace(at=max(0, news.at - 1))
            _correct(moments, place, moments[place])
    _correct(moments, len(moments), news)
    moments.append(news)


def _correct(moments: list[Moment], end: int, news: Moment) -> None:
    """Let nothing that the same worker told before, left of ``end``, be later than ``news``."""
    for place in range(end - 1, -1, -1):
        earlier = moments[place]
        if earlier.worker_id != news.worker_id or earlier.kind in _SEEN:
            continue
        if earlier.at <= news.at:
            return
        moments[place] = earlier._replace(at=news.at)


def _had_at(moments: list[Moment], departs: Moment) -> int | None:
    """Return when the target of a departure had the KV, if it has told so already."""
    had_at = None
    for moment in reversed(moments):
        arrives = moment.kind is MomentKind.ARRIVING
        if moment.kind is MomentKind.LOST or (arrives and moment.worker_id == departs.worker_id):
            return None  # another attempt, or an earlier way
        if departs.cause == way_to(moment.worker_id):
            if arrives:
                return had_at
            if moment.kind in _HAS_KV:
                had_at = moment.at
    return None


def _departure_to(moments: list[Moment], worker_id: str) -> int | None:
    """Return the place of the departure that led to a worker; None if it is not known yet."""
    for place in range(len(moments) - 1, -1, -1):
        moment = moments[place]
        is_earlier = moment.kind in _HAS_KV and moment.worker_id == worker_id
        if moment.kind is MomentKind.LOST or is_earlier:
            return None
        if moment.kind is MomentKind.DEPARTS and moment.cause == way_to(worker_id):
            return place
    return None
