"""Claims about one figure of two systems that served the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from studies.claims import Bar, Claim, PerSeed
from studies.curves import Point, place_of
from studies.runs import Results


@dataclass(frozen=True, slots=True)
class Compared:
    """A claim: from system ``before`` to ``after``, ``figure`` changes as ``bar`` asks.

    ``at``: the scenario of the jobs. ``paper``: the paper's own figure. ``why``: a reason that is
    known. ``beside``: systems whose figures the note shows as well.
    """

    claim: str
    at: str
    rate: float
    figure: str
    unit: str
    before: str
    after: str
    paper: str
    bar: Bar
    why: str = ""
    beside: tuple[str, ...] = ()

    def judged(self, paper: str, where: str, found: Results) -> Claim:
        """Return the row; ``where``: the scenario for people."""
        pair = found.pair(self.at, (self.before, self.after), self.rate, self.figure)
        others = [
            f"{name} {found.sample(self.at, name, self.rate, self.figure).mean:.3g}"
            for name in self.beside
        ]
        row = judged(
            paper,
            self.claim,
            f"{where}; {self.unit}",
            self.paper,
            self.bar,
            *pair,
            self.before,
            self.why,
        )
        return replace(row, note="; ".join([row.note, *others]))


def judged(
    paper: str,
    claim: str,
    scenario: str,
    paper_value: str,
    bar: Bar,
    before: PerSeed,
    after: PerSeed,
    against: str,
    why: str = "",
) -> Claim:
    """Return a row with the bar's verdict on the changes seed by seed; ``why``: if it fails."""
    changes = bar.changes(before, after)
    found = f"{bar.told(changes.mean)} ± {bar.told(changes.spread).lstrip('+')}"
    return Claim(
        paper,
        claim,
        scenario,
        paper_value,
        before,
        after,
        holds=(holds := bar.judge(changes)),
        note=f"{found}; {why}" if why and not holds else found,
        against=against,
        asked=bar.shown(changes),
    )


def claims(
    paper: str, rows: Iterable[Compared], places: Mapping[str, str], found: Results
) -> list[Claim]:
    """Return every row; ``places``: scenarios for people."""
    return [row.judged(paper, _where(places[row.at], row.rate), found) for row in rows]


def _where(place: str, rate: float) -> str:
    return f"{place}, {rate:g} requests/s" if rate else place


Frontier = Sequence[Point]
WANTED = 0.97
"""Attainment for which GPUs are compared."""


def gpus_for(frontiers: Iterable[Frontier]) -> tuple[PerSeed, int]:
    """Return the GPUs for the wanted attainment seed by seed, and how many never have it.

    Points are (GPUs, attainment). A frontier that never has it counts its most: it would take more.
    """
    listed = list(frontiers)
    places = [place_of(each, WANTED) for each in listed]
    gpus = (each[-1][0] if at is None else at for at, each in zip(places, listed, strict=True))
    return PerSeed(tuple(gpus)), sum(at is None for at in places)


def cheaper(
    judge: Callable[[PerSeed, PerSeed], Claim],
    names: tuple[str, str],
    before: Iterable[Frontier],
    after: Iterable[Frontier],
) -> Claim:
    """Compare the GPUs that two systems need for the wanted attainment; ``judge`` makes the row.

    The verdict is open where ours does not win against a baseline that lacks it, too, and fails
    where ours alone lacks it.
    """
    (theirs, they_miss), (ours, we_miss) = gpus_for(before), gpus_for(after)
    claim = judge(theirs, ours)
    for name, count in zip(names, (they_miss, we_miss), strict=True):
        if count:
            claim = replace(claim, note=f"{claim.note}; {name} never has it with {count} seeds")
    if we_miss:
        return replace(claim, holds=None if they_miss else False)
    return replace(claim, holds=claim.holds or None) if they_miss else claim
