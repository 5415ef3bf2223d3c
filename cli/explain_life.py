"""A life as text: a timeline in clock time, what took longest, and what held it up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from headway.life.moments import Moment, MomentKind
from headway.life.parts import LifePart, PartKind
from headway.life.reasons import Reason, reasons_of, several
from headway.life.record import LifeRecord

_EPOCH_BEGINS = 1e8
"""Seconds below which an instant is of a simulated run, whose clock begins at 0."""
_LEAST_DELAY = 1e-3  # seconds that are worth a line
_DOES = {
    PartKind.SUBMISSION: "is read and handed to the scheduler",
    PartKind.WINDOW: "waits in the scheduler's window",
    PartKind.QUEUE: "waits on {worker} for KV blocks and a pass",
    PartKind.PREFILL: "its prompt is computed on {worker}",
    PartKind.PLACEMENT: "waits for a worker that decodes it",
    PartKind.WAY: "news and orders of it are on their way",
    PartKind.TRANSFER: "its KV goes from {worker} to the next worker",
    PartKind.DECODE: "draws tokens on {worker}",
    PartKind.PREEMPTED: "has lost its blocks on {worker}, and waits for new ones",
    PartKind.SWAP: "its KV comes back from host memory on {worker}",
    PartKind.RECOMPUTE: "computes again on {worker} what it had lost",
    PartKind.MOVE: "stands still: the remainder of its KV leaves {worker}",
    PartKind.RETRY: "its attempt was lost; the next one is due",
}


def life_text(life: LifeRecord) -> str:
    """Return the whole story."""
    lines = [_headline(life), *_crowd(life)]
    lines += _timeline(life)
    return "\n".join([*lines, *_conclusions(life)])


def _headline(life: LifeRecord) -> str:
    tokens, who = life.tokens, [life.model]
    if life.service_class:
        who.append(f"class {life.service_class}")
    if life.tenant:
        who.append(f"tenant {life.tenant}")
    if life.session_id:
        who.append(f"turn {life.turn} of session {life.session_id}")
    ending = "is still running" if life.instants.end is None else f"ended: {life.status}"
    figures = [
        f"{name} {value:.3f} s"
        for name, value in (("TTFT", life.ttft), ("TTFAT", life.ttfat))
        if value is not None
    ]
    if life.tpot is not None:
        figures.append(f"TPOT {life.tpot * 1e3:.1f} ms")
    suffix = f" ({', '.join(figures)})" if figures else ""
    cached = f" ({tokens.cached:,} cached)" if tokens.cached else ""
    amounts = f"{several(tokens.prompt, 'prompt token')}{cached}, "
    amounts += several(tokens.output, "output token")
    return (
        f"{life.request_id} ({', '.join(who)}) {ending} after {life.total / 1e6:.3f} s{suffix}; "
        f"{amounts}" + (f"\n  error: {life.error}" if life.error else "")
    )


def _crowd(life: LifeRecord) -> Iterator[str]:
    crowd = life.crowd
    if crowd.num_ahead:
        yield (
            f"  when it came, {several(crowd.num_ahead, 'other')} waited "
            f"({several(crowd.tokens_ahead, 'prompt token')}); "
            f"{crowd.rate:.1f} requests/s then, {crowd.usual_rate:.1f} usual"
        )


def _timeline(life: LifeRecord) -> Iterator[str]:
    """Yield a line for each part and for each moment that says why."""
    lines = [(part.begin, 0, _part_line(life, part)) for part in life.parts]
    placed_on = ""
    for moment in life.moments:
        is_repeat = moment.kind is MomentKind.PLACED and moment.worker_id == placed_on
        if moment.kind is MomentKind.PLACED:
            placed_on = moment.worker_id
        if not is_repeat and (line := _moment_line(life, moment)):
            lines.append((moment.at, 1, line))
    for _, _, line in sorted(lines):
        yield line
    if life.instants.end is not None:
        yield f"{_clock(life, life.instants.end)}  ends: {life.status}"


def _part_line(life: LifeRecord, part: LifePart) -> str:
    does = _DOES[part.kind].format(worker=part.worker_id or "a worker")
    return f"{_clock(life, part.begin)}  {does}: {part.seconds:.3f} s"


def _moment_line(life: LifeRecord, moment: Moment) -> str:
    clock = _clock(life, moment.at)
    match moment.kind:
        case MomentKind.PLACED if moment.cause:
            return f"{clock}    placed on {moment.worker_id} ({moment.cause})"
        case MomentKind.PREEMPTED | MomentKind.SWAPS_OUT:
            return f"{clock}    preempted: {moment.cause} ({several(moment.amount, 'token')} of KV)"
        case MomentKind.LOST:
            return f"{clock}    lost: {moment.cause}"
        case MomentKind.PREDICTED:
            by = moment.worker_id or "the gateway"
            expected = several(moment.amount, "output token")
            return f"{clock}    {by} expects {expected}{_error(life, moment)}"
        case MomentKind.PACED:
            held = several(moment.amount, "token was", "tokens were")
            return f"{clock}    {held} held for its reader (pacing)"
    return ""


def _error(life: LifeRecord, moment: Moment) -> str:
    """Return how wrong a prediction was, once that is known."""
    if life.instants.end is None or not life.tokens.output:
        return ""
    return f", {moment.amount - life.tokens.output:+,} from what came"


def _clock(life: LifeRecord, at: int) -> str:
    """Return an instant: the time of day and the seconds since the arrival."""
    return f"{time_of(life.arrival_at + at / 1e6):>12} {at / 1e6:+9.3f} s"


def time_of(instant: float) -> str:
    """Return the time of day; of a simulated instant its seconds."""
    if instant < _EPOCH_BEGINS:
        return f"{instant:.3f}"
    when = datetime.fromtimestamp(instant).astimezone()
    return when.isoformat(" ", "milliseconds")[11:23]


def _conclusions(life: LifeRecord) -> Iterator[str]:
    reasons = reasons_of(life)
    if not reasons:
        return
    longest = reasons[0]
    yield f"longest: {_reason_line(longest, life)}"
    delays = [each for each in reasons if each.is_delay and each.seconds >= _LEAST_DELAY]
    if not delays:
        yield "held up by nothing"
        return
    yield "held up by:"
    for delay in delays:
        yield f"  {_reason_line(delay, life)}"


def _reason_line(reason: Reason, life: LifeRecord) -> str:
    share = reason.seconds * 1e6 / life.total if life.total else 0.0
    return f"{reason.seconds:.3f} s ({share:.0%})  {reason.name}: {reason.why}"
