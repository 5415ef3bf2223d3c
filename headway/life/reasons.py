"""Reasons in words: what a request's time went into, and what held it up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from headway.life.moments import MomentKind
from headway.life.parts import PartKind
from headway.life.record import LifeRecord

WORK = frozenset({PartKind.PREFILL, PartKind.DECODE})
"""Parts that every request has; the others hold it up."""
_HAD_KV = frozenset({PartKind.TRANSFER, PartKind.MOVE, PartKind.PLACEMENT, PartKind.DECODE})
_LONG_SUBMISSION = 1.0  # seconds


class Reason(NamedTuple):
    """A part of a request's time: how long it took in all, its cause by name, and why."""

    kind: PartKind
    seconds: float
    name: str
    why: str

    @property
    def is_delay(self) -> bool:
        """True if it held the request up."""
        return self.kind not in WORK

    def packed(self) -> dict[str, str | float | bool]:
        """Return it as JSON values."""
        return {
            "kind": self.kind.value,
            "seconds": self.seconds,
            "name": self.name,
            "why": self.why,
            "is_delay": self.is_delay,
        }


def reasons_of(life: LifeRecord) -> tuple[Reason, ...]:
    """Return what the time went into, the longest first."""
    spent: Counter[PartKind] = Counter()
    for part in life.parts:
        spent[part.kind] += part.end - part.begin
    reasons = [
        Reason(kind, microseconds / 1e6, *_WHY[kind](life)) for kind, microseconds in spent.items()
    ]
    return tuple(sorted(reasons, key=lambda reason: (-reason.seconds, reason.kind.value)))


Why = tuple[str, str]


def _submission(life: LifeRecord) -> Why:
    sent = life.find(MomentKind.SENT)
    if not sent or sent[0].at > _LONG_SUBMISSION * 1e6:
        return "no scheduler", "no scheduler could be reached, or its prompt took long to read"
    return "submission", "its prompt was read and tokenised"


def _behind(life: LifeRecord, where: str, otherwise: Why) -> Why:
    crowd = life.crowd
    tokens = several(crowd.tokens_ahead, "prompt token")
    ahead = f"{crowd.num_ahead} waited in front of it with {tokens}"
    if crowd.is_burst:
        rates = f"{crowd.rate:.1f} requests/s came in the last second, {crowd.usual_rate:.1f} usual"
        return "behind a burst", f"it waited {where}: {rates}; {ahead}"
    return ("behind others", f"it waited {where}: {ahead}") if crowd.num_ahead else otherwise


def _window(life: LifeRecord) -> Why:
    return _behind(life, "in the window", ("window", "it waited for an instance to be ready"))


def _queue(life: LifeRecord) -> Why:
    """Tell a wait for the prompt's blocks from one of KV that has come, and lies in host memory."""
    waits = [part for part in life.parts if part.kind is PartKind.QUEUE]
    later = [
        part
        for before, part in pairwise(life.parts)
        if part.kind is PartKind.QUEUE and before.kind in _HAD_KV
    ]
    if 2 * sum(part.seconds for part in later) > sum(part.seconds for part in waits):
        where = ", ".join(dict.fromkeys(part.worker_id for part in later))
        return "waited for blocks", f"its KV was in host memory, and waited for blocks of {where}"
    return _behind(
        life, "on a worker", ("waited for blocks", "it waited for KV blocks, and for a pass")
    )


def _prefill(life: LifeRecord) -> Why:
    tokens = life.tokens
    cached = f", {tokens.cached:,} of them cached" if tokens.cached else ""
    computed = life.find(MomentKind.COMPUTED)
    passes = f" in {several(computed[0].amount, 'pass', 'passes')}" if computed else ""
    return "prompt", f"{several(tokens.prompt, 'token')} of prompt{cached}{passes}"


def _placement(life: LifeRecord) -> Why:
    return "placement", "it was prefilled, and waited for a worker that decodes it"


def _on_the_way(life: LifeRecord) -> Why:
    return "on the way", "messages about it were under way, or a process was too busy to read them"


def _transfer(life: LifeRecord) -> Why:
    return "handoff", f"its KV went to the worker that decodes it ({_way(life)})"


def _decode(life: LifeRecord) -> Why:
    tokens = life.tokens
    reasoning = f", {tokens.reasoning:,} of them reasoning" if tokens.reasoning else ""
    pace = "" if life.tpot is None else f", one every {life.tpot * 1e3:.1f} ms"
    return "output", f"{several(tokens.output, 'token')}{reasoning}{pace}"


def _preempted(life: LifeRecord) -> Why:
    losses = [*life.find(MomentKind.PREEMPTED), *life.find(MomentKind.SWAPS_OUT)]
    causes = "; ".join(dict.fromkeys(moment.cause for moment in losses if moment.cause))
    num_lost = sum(moment.amount for moment in losses)
    lost = f"it lost its blocks {several(len(losses), 'time')}, {several(num_lost, 'token')} of KV"
    return "preempted", f"{lost}: {causes}" if causes else lost


def _swap(life: LifeRecord) -> Why:
    return "preempted", "its KV came back from host memory"


def _recompute(life: LifeRecord) -> Why:
    name = "retried" if life.find(MomentKind.LOST) else "preempted"
    return name, "it computed again what it had lost"


def _move(life: LifeRecord) -> Why:
    num_moves = sum(part.kind is PartKind.MOVE for part in life.parts)
    return "moved", f"it moved {several(num_moves, 'time')} while it ran ({_way(life)})"


def _retry(life: LifeRecord) -> Why:
    causes = dict.fromkeys(moment.cause for moment in life.find(MomentKind.LOST) if moment.cause)
    return "retried", "; ".join(causes) or "its attempt was lost"


def _way(life: LifeRecord) -> str:
    return " → ".join(life.workers)


def several(number: int, one: str, more: str = "") -> str:
    """Return a number with its word: 1 pass, 2 passes; ``more``: by default the word with an s."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


_WHY = {
    PartKind.SUBMISSION: _submission,
    PartKind.WINDOW: _window,
    PartKind.QUEUE: _queue,
    PartKind.PREFILL: _prefill,
    PartKind.PLACEMENT: _placement,
    PartKind.WAY: _on_the_way,
    PartKind.TRANSFER: _transfer,
    PartKind.DECODE: _decode,
    PartKind.PREEMPTED: _preempted,
    PartKind.SWAP: _swap,
    PartKind.RECOMPUTE: _recompute,
    PartKind.MOVE: _move,
    PartKind.RETRY: _retry,
}
