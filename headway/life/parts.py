"""Parts of a request's life: what its time consisted of, without gaps and without overlap.

Every part begins where the one before it ended. The first one begins at the arrival, and the last
one ends with the request. Bounds are whole microseconds, so the parts sum exactly to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from headway.life.moments import Moment, MomentKind


class PartKind(Enum):
    """A use of a request's time."""

    SUBMISSION = "submission"  # read and tokenised by the gateway; no scheduler has it yet
    WINDOW = "window"  # waits in the scheduler's window
    QUEUE = "queue"  # waits on a worker for blocks and for a pass
    PREFILL = "prefill"  # its prompt is computed
    PLACEMENT = "placement"  # is prefilled, and waits for a worker that decodes it
    TRANSFER = "transfer"  # its KV goes to the worker that decodes it
    DECODE = "decode"  # draws tokens
    PREEMPTED = "preempted"  # has lost its blocks, and waits for new ones
    SWAP = "swap"  # its KV comes back from host memory
    RECOMPUTE = "recompute"  # computes again what it had lost
    MOVE = "move"  # stands still while the remainder of its KV goes to another worker
    WAY = "way"  # waits no more, or not yet: news or an order of it is on its way
    RETRY = "retry"  # its attempt was lost, and it waits for the next one


class LifePart(NamedTuple):
    """A stretch of a request's life: microseconds after its arrival."""

    kind: PartKind
    begin: int
    end: int
    worker_id: str = ""

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.begin) / 1e6


_BEFORE_A_WORKER = frozenset({PartKind.SUBMISSION, PartKind.WINDOW, PartKind.RETRY})
_BEFORE_ITS_TOKENS = _BEFORE_A_WORKER | {PartKind.QUEUE}

_ALWAYS: Mapping[MomentKind, PartKind] = {
    MomentKind.LOST: PartKind.RETRY,
    MomentKind.COMPUTED: PartKind.DECODE,
    MomentKind.CONTINUES: PartKind.DECODE,
    MomentKind.RUNS_ON: PartKind.DECODE,
    MomentKind.PREEMPTED: PartKind.PREEMPTED,
    MomentKind.SWAPS_OUT: PartKind.PREEMPTED,
    MomentKind.KV_LOST: PartKind.PREEMPTED,
    MomentKind.SWAPS_IN: PartKind.SWAP,
    MomentKind.PREFILLED: PartKind.PLACEMENT,
    MomentKind.HOLDS_ON: PartKind.PLACEMENT,
    MomentKind.WAITS_ON: PartKind.QUEUE,
}


def parts_of(moments: Iterable[Moment], end: int) -> tuple[LifePart, ...]:
    """Return the parts of a life that ended, or was looked at, ``end`` µs after its arrival.

    ``moments`` are in order of time. Those outside the life count as at its nearer bound.
    """
    parts: list[LifePart] = []
    timeline = tuple(moments)
    kind, worker_id, begin, has_computed = PartKind.SUBMISSION, "", 0, False
    for moment in timeline:
        following = _following(kind, worker_id, moment, has_computed=has_computed)
        has_computed = has_computed or following is PartKind.DECODE
        if following is None:
            continue
        at = min(max(moment.at, begin), end)
        _close(parts, LifePart(kind, begin, at, worker_id))
        kind, begin = following, at
        if moment.kind is not MomentKind.ARRIVING:  # until it runs there, it is where it was
            worker_id = moment.worker_id if following not in _BEFORE_A_WORKER else ""
    _close(parts, LifePart(kind, begin, max(begin, end), worker_id))
    chosen = [moment for moment in timeline if moment.kind is MomentKind.CHOSEN]
    nexts = (*(part.worker_id for part in parts[1:]), "")
    return tuple(
        shorter
        for part, next_worker_id in zip(parts, nexts, strict=False)
        for shorter in _without_way(part, next_worker_id, chosen)
    )


def _without_way(
    part: LifePart, next_worker_id: str, chosen: Sequence[Moment]
) -> Iterator[LifePart]:
    """Yield a wait for the scheduler's choice and, apart from it, the way of the messages.

    The scheduler says how long it knew of the wait. The rest went by on the way there and back, as
    no clock can tell one from the other.
    """
    choices: Iterator[Moment] = iter(())
    if part.kind is PartKind.WINDOW:
        choices = (each for each in chosen if each.worker_id == next_worker_id)
    elif part.kind is PartKind.PLACEMENT:  # a late word on its first worker is none on the next
        choices = (each for each in chosen if each.worker_id != part.worker_id)
    choice = next((each for each in choices if each.at >= part.begin), None)
    if choice is None or part.begin + choice.amount >= part.end:
        yield part
        return
    decided = part.begin + choice.amount
    if decided > part.begin:
        yield part._replace(end=decided)
    yield LifePart(PartKind.WAY, decided, part.end, part.worker_id)


def _close(parts: list[LifePart], part: LifePart) -> None:
    """Append a part, joined with an equal one before it; one without length says nothing."""
    if part.begin == part.end:
        return
    last = parts[-1] if parts else None
    if last is not None and (last.kind, last.worker_id) == (part.kind, part.worker_id):
        parts[-1] = last._replace(end=part.end)
    else:
        parts.append(part)


def _following(
    kind: PartKind, worker_id: str, moment: Moment, *, has_computed: bool
) -> PartKind | None:
    """Return the kind of part that a moment begins; None if the present one goes on.

    Gateway and workers each tell what they saw, and a message takes its time: what a worker has
    said already is not undone by the gateway's later word on the same step.
    """
    said = moment.kind
    if said in _ALWAYS:
        return _ALWAYS[said]
    is_elsewhere = moment.worker_id != worker_id
    match said:
        case MomentKind.SENT if kind in (PartKind.SUBMISSION, PartKind.RETRY):
            return PartKind.WINDOW
        case MomentKind.PLACED | MomentKind.QUEUED:
            waits_elsewhere = kind is PartKind.QUEUE and is_elsewhere
            return PartKind.QUEUE if kind in _BEFORE_A_WORKER or waits_elsewhere else None
        case MomentKind.ADMITTED:
            return _with_blocks(moment.amount, has_computed=has_computed)
        case MomentKind.SWAPPED if kind is PartKind.SWAP:
            return _with_blocks(moment.amount, has_computed=has_computed)
        case MomentKind.FIRST_TOKEN if kind in _BEFORE_ITS_TOKENS:
            return PartKind.DECODE
        case MomentKind.LEFT if kind is PartKind.DECODE and not is_elsewhere:
            return PartKind.MOVE
        case MomentKind.DEPARTS:
            return (
                PartKind.TRANSFER
                if kind in (PartKind.PLACEMENT, PartKind.TRANSFER)
                else (PartKind.MOVE)
            )
        case MomentKind.ARRIVING if kind is PartKind.PLACEMENT:
            return PartKind.TRANSFER
    return None


def _with_blocks(num_to_compute: int, *, has_computed: bool) -> PartKind:
    """Return what a request does that has blocks: its last token alone is a step of decoding."""
    if has_computed:
        return PartKind.DECODE if num_to_compute == 1 else PartKind.RECOMPUTE
    return PartKind.PREFILL
