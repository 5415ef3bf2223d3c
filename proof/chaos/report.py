"""The report of a campaign: what was hit, what clients read, what it took and what was left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headway.metrics import percentile
from proof.chaos.load import Load
from proof.checker import Checker, to_lines

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault: its kind, what it hit, and when (s since the begin of the load)."""

    kind: str
    target: str
    began_at: float
    ended_at: float
    recovery: float | None
    """Seconds from its end until every answer that was being read had gone on; None: not seen."""


@dataclass(slots=True)
class Report:
    """Figures of one campaign."""

    seed: int
    cluster: str = ""
    """The preset, engines and proof of identity that were tried, in words."""
    seconds: float = 0.0
    faults: list[Injected] = field(default_factory=list)
    num_asked: int = 0
    num_answers: int = 0
    """Answers compared with the undisturbed ones: a choice of a request each."""
    num_tokens: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    """Answers that had begun and ended with an error."""
    given_up: list[str] = field(default_factory=list)
    """Requests that ended with an error as promised: the faults had ended their workers."""
    violations: list[str] = field(default_factory=list)
    broken: Sequence[str] = ()
    """The history of the answers that broke a promise, a record a line."""
    pauses: Mapping[str, float] = field(default_factory=dict)
    recovery: Mapping[str, float] = field(default_factory=dict)
    memory: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)
    """Resident memory (MiB) by process, over the seconds since the begin."""
    left: list[str] = field(default_factory=list)
    """What was not as before once all was quiet."""
    tracebacks: Mapping[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return whether every promise was kept."""
        return not (self.violations or self.cut or self.left)

    def sum_up(self, load: Load, checker: Checker) -> None:
        """Take the figures of the load and the checker."""
        figures, summary = load.figures, checker.summary
        self.num_asked = sum(figures.by_kind.values())
        self.num_answers, self.num_tokens = summary.num_requests, summary.num_tokens
        self.ends, self.refusals = dict(summary.ends), dict(figures.refusals)
        self.cut, self.given_up = figures.cut, figures.given_up
        self.violations = [str(each) for each in checker.violations]
        self.broken = list(to_lines(load.broken))
        self.pauses = _spread(figures.pauses)
        self.recovery = _spread([f.recovery for f in self.faults if f.recovery is not None])

    def write(self, path: Path) -> None:
        """Write all of it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def lines(self) -> list[str]:
        """Return the text for a terminal."""
        kinds = Counter(fault.kind for fault in self.faults)
        by_kind = ", ".join(f"{name} {number}" for name, number in sorted(kinds.items()))
        return [
            f"{len(self.faults)} faults in {self.seconds:.0f} s (seed {self.seed}): {by_kind}",
            f"{self.num_asked} requests, {self.num_answers} answers compared, "
            f"{self.num_tokens} tokens; ends: {_counts(self.ends)}",
            f"refused: {_counts(self.refusals) or 'none'}",
            *(f"  as promised: {text}" for text in self.given_up[:_SHOWN]),
            f"broken promises: {len(self.violations)}; answers cut off: {len(self.cut)}",
            *(f"  {text}" for text in (*self.violations, *self.cut)[:_SHOWN]),
            f"longest pause of an answer, s: {_values(self.pauses)}",
            f"recovery after a fault, s: {_values(self.recovery)}",
            *self._memory_lines(),
            f"tracebacks in logs: {_counts(self.tracebacks) or 'none'}",
            *(f"not as before: {text}" for text in self.left),
            self.summary(),
        ]

    def summary(self) -> str:
        """Return one line to keep."""
        verdict = "every promise was kept" if self.holds else "FAILED"
        tried = f"{self.cluster}, seed {self.seed}" if self.cluster else f"seed {self.seed}"
        return (
            f"{verdict}: {len(self.faults)} faults, {self.num_answers} answers, "
            f"{self.num_tokens} tokens ({tried})"
        )

    def _memory_lines(self) -> list[str]:
        if not self.memory:
            return []
        (_, first), (_, last) = self.memory[0], self.memory[-1]
        each = (f"{name} {first.get(name, 0.0):.0f} → {last[name]:.0f}" for name in sorted(last))
        return [f"memory, MiB: {', '.join(each)}"]


def _spread(values: Sequence[float]) -> Mapping[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {"p50": percentile(ordered, 0.5), "p99": percentile(ordered, 0.99), "most": ordered[-1]}


def _values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items()) or "none seen"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
