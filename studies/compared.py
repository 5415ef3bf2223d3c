"""Claims about one figure of two systems that served the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from studies.claims import Bar, Claim, PerSeed
from studies.curves import Point, place_of
from studies.runs import Results


class Quantity(NamedTuple):
    """A figure of the rows of results, and its unit for people."""

    figure: str
    unit: str = "seconds"


class Expected(NamedTuple):
    """The paper's own figure and the bar; ``why``: a reason that is known where it fails."""

    paper: str
    bar: Bar
    why: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """A claim: from the first system to the second, a quantity changes as is asked.

    ``place``: the scenario of the jobs, and their rate. ``beside``: systems whose figures the note
    shows as well.
    """

    claim: str
    place: tuple[str, float]
    quantity: Quantity
    systems: tuple[str, str]
    asked: Expected
    beside: tuple[str, ...] = ()

    def judged(self, paper: str, where: str, results: Results) -> Claim:
        """Return the row; ``where``: the scenario for people."""
        (at, rate), (figure, unit) = self.place, self.quantity
        pair = results.pair(at, self.systems, rate, figure)
        others = (
            f"{name} {results.sample(at, name, rate, figure).mean:.3g}" for name in self.beside
        )
        row = judged(paper, self.claim, f"{where}; {unit}", self.asked, pair, self.systems[0])
        return replace(row, note="; ".join([row.note, *others]))


def judged(
    paper: str,
    claim: str,
    scenario: str,
    asked: Expected,
    pair: tuple[PerSeed, PerSeed],
    against: str,
) -> Claim:
    """Return a row with the bar's verdict on the changes of a pair of systems, seed by seed."""
    value, bar, why = asked
    changes = bar.changes(*pair)
    change = f"{bar.change_text(changes.mean)} ± {bar.change_text(changes.spread).lstrip('+')}"
    return Claim(
        paper,
        claim,
        scenario,
        value,
        *pair,
        holds=(holds := bar.judge(changes)),
        note=f"{change}; {why}" if why and not holds else change,
        against=against,
        asked=bar.limit_text(changes),
    )


def claims(
    paper: str, rows: Iterable[Compared], places: Mapping[str, str], results: Results
) -> list[Claim]:
    """Return every row; ``places``: scenarios for people."""
    return [row.judged(paper, _where(places, *row.place), results) for row in rows]


def _where(places: Mapping[str, str], at: str, rate: float) -> str:
    return f"{places[at]}, {rate:g} requests/s" if rate else places[at]


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
