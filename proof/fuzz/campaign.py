"""A fuzzing campaign: inputs from a seed, findings saved and made small."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol

_SHRINK_TRIES = 400
_SHRINK_SECONDS = 30.0
_SAID_EVERY = 10.0  # seconds
Say = Callable[[str], None]


class Target(Protocol):
    """One kind of fuzzing. An input is bytes, so that it can be saved and made smaller."""

    unit: int
    """Bytes that stay together when an input is made smaller."""

    def make(self, rng: random.Random) -> bytes:
        """Return an input."""

    def attempt(self, given: bytes) -> str:
        """Try it; return what is wrong, "" if nothing is."""

    def check(self) -> str:
        """Return what is wrong after many inputs, "" if nothing is."""

    def close(self) -> None:
        """End what was started."""

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Return how many inputs came to which end."""


@dataclass(slots=True)
class FuzzReport:
    """Figures of one campaign."""

    kind: str
    seed: int
    num_inputs: int = 0
    seconds: float = 0.0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    findings: Counter[str] = field(default_factory=Counter)
    """By what is wrong, how many inputs showed it."""
    saved: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings

    def lines(self) -> list[str]:
        """Return the text for a terminal."""
        rate = self.num_inputs / self.seconds if self.seconds else 0.0
        ends = ", ".join(f"{name} {number}" for name, number in sorted(self.outcomes.items()))
        return [
            f"{self.kind}: {self.num_inputs} inputs in {self.seconds:.0f} s "
            f"({rate:.0f}/s, seed {self.seed}): {ends}",
            *(f"  {number} x {text}" for text, number in self.findings.most_common(20)),
            *(f"  saved: {path}" for path in self.saved),
            f"  {'nothing was found' if self.holds else 'FAILED'}",
        ]

    def write(self, path: Path) -> None:
        """Write all of it as JSON."""
        counts = {"outcomes": dict(self.outcomes), "findings": dict(self.findings)}
        written = {"kind": self.kind, "seed": self.seed, "num_inputs": self.num_inputs}
        written |= {"seconds": self.seconds, "saved": self.saved, **counts}
        path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def run(
    kind: str, target: Target, *, num_inputs: int, seed: int, folder: Path, say: Say
) -> FuzzReport:
    """Try so many inputs; the first input of each finding is made small and saved."""
    report, rng = FuzzReport(kind, seed), random.Random(f"{kind}/{seed}")
    began_at = said_at = time.monotonic()
    for _ in range(num_inputs):
        given = target.make(rng)
        report.num_inputs += 1
        finding = target.attempt(given)
        if finding:
            report.findings[finding] += 1
            if report.findings[finding] == 1:
                report.saved.append(_save(folder, kind, finding, shrink(target, given, finding)))
        if time.monotonic() - said_at >= _SAID_EVERY:
            said_at = time.monotonic()
            say(f"{kind}: {report.num_inputs} inputs, {len(report.findings)} findings")
    at_last = target.check()
    if at_last:
        report.findings[at_last] += 1
    report.seconds = time.monotonic() - began_at
    report.outcomes = dict(target.outcomes)
    return report


def shrink(target: Target, given: bytes, finding: str) -> bytes:
    """Return a smaller input with the same finding: leave out ever smaller parts."""
    give_up_at = time.monotonic() + _SHRINK_SECONDS
    num_tries, part = 0, max(target.unit, len(given) // 2 // target.unit * target.unit)
    while True:
        place = 0
        while place < len(given) and num_tries < _SHRINK_TRIES and time.monotonic() < give_up_at:
            smaller = given[:place] + given[place + part :]
            num_tries += 1
            if target.attempt(smaller) == finding:
                given = smaller
            else:
                place += part
        if part <= target.unit:
            return given
        part = max(target.unit, part // 2 // target.unit * target.unit)


def _save(folder: Path, kind: str, finding: str, given: bytes) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{sha256(finding.encode()).hexdigest()[:8]}.bin"
    path.write_bytes(given)
    path.with_suffix(".txt").write_text(f"{finding}\n{given!r}\n", encoding="utf-8")
    return str(path)


def raised(error: BaseException) -> str:
    """Return an unexpected exception as a finding: its kind and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    return (
        f"{type(error).__name__} at {_place(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    )


def _place(filename: str) -> str:
    parts = Path(filename).parts
    return "/".join(parts[-3:])
