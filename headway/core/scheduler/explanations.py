"""Recorded decisions: written one a line, read back, told to people request by request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from headway.core.scheduler.events import Decision
from headway.errors import Code, HeadwayError

MOST_LINE_CHARS = 1 << 24
MOST_OTHERS = 8
_SCORES = {
    "dispatch": ("C_avail", "chunk"),
    "placement": ("B", "K"),
    "boundary": ("B", "K"),
    "rescheduling": ("B", "K"),
    "drain": ("B", "K"),
}


def write_decisions(decisions: Iterable[Decision], file: TextIO) -> None:
    """One JSON object a line."""
    for decision in decisions:
        file.write(decision_line(decision) + "\n")


def decision_line(decision: Decision) -> str:
    """As it is recorded, without a line's end."""
    return json.dumps(_packed(decision), separators=(",", ":"))


def lines_about(request_id: str, decisions: Iterable[Decision]) -> list[str]:
    """The decisions that chose for this request, in order."""
    about = (d for d in decisions if any(c.request_id == request_id for c in d.chosen))
    return [decision_line(decision) for decision in about]


def _packed(decision: Decision) -> dict[str, Any]:
    return {
        "question": decision.question,
        "at": decision.decided_at,
        "rule": decision.rule,
        "left": decision.num_left,
        "considered": [
            [f"{c.unit.worker_id}/{c.unit.unit}", list(c.load), c.num_free_blocks]
            for c in decision.considered
        ],
        "chosen": [
            [c.request_id, f"{c.unit.worker_id}/{c.unit.unit}", list(c.score), c.waited]
            for c in decision.chosen
        ],
    }


@dataclass(frozen=True, slots=True)
class Told:
    """One decision about one request: what it says, with those that stood beside it."""

    at: float
    question: str
    rule: str
    unit: str
    score: tuple[float, ...]
    waited: float
    others: tuple[tuple[str, tuple[float, ...], int], ...]
    together_with: tuple[str, ...]
    num_left: int

    def text(self) -> str:
        """A paragraph."""
        names = _SCORES.get(self.question, ())
        together = f", together with {len(self.together_with)} others" if self.together_with else ""
        score = ", ".join(f"{value:g}" for value in self.score)
        lines = [
            f"{self.at:12.4f} s  {self.question} by {self.rule}: to {self.unit}"
            f" (score {score or 'none'}) after {self.waited:.4f} s{together};"
            f" {self.num_left} left waiting"
        ]
        for unit, load, num_free in self.others[:MOST_OTHERS]:
            shown = ", ".join(f"{n} {v:g}" for n, v in zip(names, load, strict=False))
            mark = "→" if unit == self.unit else " "
            lines.append(f"{'':16} {mark} {unit:<20} {shown}, {num_free} free blocks")
        if len(self.others) > MOST_OTHERS:
            lines.append(f"{'':18} and {len(self.others) - MOST_OTHERS} more")
        return "\n".join(lines)


def told_of(request_id: str, lines: Iterable[str]) -> Iterator[Told]:
    """Every decision about the request, in order; HeadwayError for a line that is none."""
    for number, line in enumerate(lines, start=1):
        if request_id not in line:
            continue
        try:
            yield from _of_line(request_id, json.loads(line[:MOST_LINE_CHARS]))
        except (ValueError, TypeError, LookupError) as error:
            message = f"line {number} is no decision ({error}): record the run again"
            raise HeadwayError(Code.INVALID_ARGUMENT, message) from error


def _of_line(request_id: str, decision: dict[str, Any]) -> Iterator[Told]:
    names = [chosen[0] for chosen in decision["chosen"]]
    for name, unit, score, waited in decision["chosen"]:
        if name != request_id:
            continue
        others = [
            (u, tuple(map(float, load)), int(free)) for u, load, free in decision["considered"]
        ]
        yield Told(
            at=float(decision["at"]),
            question=str(decision["question"]),
            rule=str(decision["rule"]),
            unit=unit,
            score=tuple(map(float, score)),
            waited=float(waited),
            others=tuple(sorted(others, key=lambda o: (o[0] != unit, o[0]))),
            together_with=tuple(n for n in names if n != request_id),
            num_left=int(decision["left"]),
        )
