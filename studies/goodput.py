"""Goodput: the requests/s of a GPU at which 95 % and 99 % of the requests keep their SLO.

Every system has its best topology of the same GPUs, chosen on a seed of its own; the plain one and
ours are also shown unified and split. Requests and SLOs are those of ``dominance``. The rate is
bisected seed by seed, and interpolated between the last two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt

from studies.best import TUNED, saturation
from studies.cells import MIXED, RECORDED, Cell
from studies.claims import Bar, Claim, PerSeed
from studies.compared import Expected, judged
from studies.dominance import SYSTEMS, measured, present
from studies.layouts import is_split
from studies.runs import Job, Results, Row
from studies.systems import OURS, PLAIN

PAPER = "goodput"
LEVELS = (0.95, 0.99)
PLACES: Mapping[str, Cell] = {
    "mixed": MIXED,
    **{n: RECORDED[n] for n in ("Azure conversation", "Azure code", "Mooncake", "ServeGen")},
}
_STEP = 1.25  # from a rate to the next, until one is too high and one is not
_COARSE, _FINE = 1.25, 1.08  # the last two rates, high over low
_NO_LESS = Bar(0.0, at_least=True)
_NOTHING = 0.2  # of the first rate: below it goodput counts as nothing


def measure(job: Job) -> Row:
    """Run once."""
    return measured(PLACES[job.scenario], job)


@dataclass(slots=True)
class Search:
    """The search for the rate of one system, place and seed; attainment by rate, so far."""

    first: float
    kept: dict[float, float] = field(default_factory=dict)

    def next_rate(self, level: float, ratio: float) -> float | None:
        """Return the next rate to try; None where two are known within a ``ratio``."""
        low, high = self._around(level)
        if not self.kept:
            rate = self.first
        elif high is None:
            rate = max(self.kept) * _STEP
        elif low is None:
            rate = high / _STEP
            if rate < _NOTHING * self.first:
                return None
        elif high / low <= ratio:
            return None
        else:
            rate = sqrt(low * high)
        return float(f"{rate:.4g}")

    def at(self, level: float) -> float:
        """Return the rate at which so much is kept, by interpolation; 0 where none is known."""
        low, high = self._around(level)
        if low is None or high is None:
            return low or 0.0
        above, below = self.kept[low], self.kept[high]
        return low + (high - low) * (above - level) / (above - below)

    def _around(self, level: float) -> tuple[float | None, float | None]:
        """Return the last rate that keeps it, and the first that does not."""
        high = min((r for r, share in self.kept.items() if share < level), default=None)
        lows = (r for r in self.kept if high is None or r < high)
        return max(lows, default=None), high


Searches = Mapping[tuple[str, str, str, int], Search]


def search(
    searches: Searches, levels: Sequence[float], ratio: float, num_processes: int
) -> Searches:
    """Go on with all searches, side by side, until each knows its rates."""
    while True:
        jobs = {}
        for key, each in searches.items():
            place, system, topology, seed = key
            rates = (each.next_rate(level, ratio) for level in levels)
            rate = next((r for r in rates if r is not None), None)
            if rate is not None:
                jobs[key] = Job(place, system, rate, seed, topology)
        if not jobs:
            return searches
        results = Results.of(measure, list(jobs.values()), num_processes)
        for key, job in jobs.items():
            searches[key].kept[job.rate] = results.rows[job]["attainment"]


@dataclass(frozen=True, slots=True)
class Goodputs:
    """Goodput by place, system and topology, and each system's topologies, the best first."""

    searches: Searches
    ranked: Mapping[tuple[str, str], Sequence[str]]
    seeds: Sequence[int]

    def of(self, place: str, system: str, level: float, topology: str = "") -> PerSeed:
        """Return requests/s of a GPU, seed by seed; of the best topology unless one is named."""
        name = topology or self.ranked[place, system][0]
        gpus = PLACES[place].num_instances
        rates = (self.searches[place, system, name, seed].at(level) for seed in self.seeds)
        return PerSeed(tuple(rate / gpus for rate in rates))

    def kind(self, place: str, system: str, *, split: bool) -> str:
        """Return a system's best topology of a kind."""
        return next(t for t in self.ranked[place, system] if is_split(t) is split)


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare ours with the plain deployment and with the best of the rest, place by place."""
    places = present(PAPER, PLACES)
    goodputs = find(places, seeds, num_processes)
    return [claim for place in places for claim in _claims(goodputs, place)]


def find(places: Mapping[str, Cell], seeds: Sequence[int], num_processes: int) -> Goodputs:
    """Choose topologies, and measure goodput in them."""
    most = saturation(measure, {p: cell.topologies for p, cell in places.items()}, num_processes)
    tried: Searches = {
        (place, system, topology, TUNED): Search(0.8 * most[place])
        for place, cell in places.items()
        for system in SYSTEMS
        for topology in cell.set_ups
    }
    search(tried, LEVELS[:1], _COARSE, num_processes)
    ranked = {
        (place, system): _ranked(tried, place, system, cell.set_ups)
        for place, cell in places.items()
        for system in SYSTEMS
    }
    searches: Searches = {
        (place, system, topology, seed): Search(
            tried[place, system, topology, TUNED].at(LEVELS[0]) or _NOTHING * most[place]
        )
        for (place, system), all_ in ranked.items()
        for topology in _best_ranked(system, all_)
        for seed in seeds
    }
    return Goodputs(search(searches, LEVELS, _FINE, num_processes), ranked, seeds)


def _ranked(tried: Searches, place: str, system: str, topologies: Sequence[str]) -> Sequence[str]:
    """Return topologies by goodput, the best first; of equal ones the simpler."""
    return sorted(topologies, key=lambda t: -tried[place, system, t, TUNED].at(LEVELS[0]))


def _best_ranked(system: str, ranked: Sequence[str]) -> Sequence[str]:
    """Return the best topology, and of the plain one and ours the best of the other kind."""
    if system not in (PLAIN, OURS):
        return ranked[:1]
    other = [each for each in ranked if is_split(each) is not is_split(ranked[0])]
    return [ranked[0], *other[:1]]


def _claims(goodputs: Goodputs, place: str) -> Iterator[Claim]:
    for level in LEVELS:
        rivals = {s: goodputs.of(place, s, level) for s in SYSTEMS if s != OURS}
        best = max(rivals, key=lambda s: rivals[s].mean)
        note = "; ".join(_said(goodputs, place, s, level) for s in SYSTEMS)
        for against in dict.fromkeys((PLAIN, best)):
            row = _row(place, level, against, rivals[against], goodputs.of(place, OURS, level))
            yield replace(row, note=f"{row.note}; {note}")
        for name, split in (("unified", False), ("split", True)):
            plain, ours = (
                goodputs.of(place, s, level, goodputs.kind(place, s, split=split))
                for s in (PLAIN, OURS)
            )
            yield _row(place, level, PLAIN, plain, ours, f", both {name}")


def _row(
    place: str, level: float, against: str, theirs: PerSeed, ours: PerSeed, kind: str = ""
) -> Claim:
    claim, asked = f"{place}: goodput at {level:.0%}{kind}", Expected("never less", _NO_LESS)
    return judged(PAPER, claim, f"{place}; requests/s of a GPU", asked, (theirs, ours), against)


def _said(goodputs: Goodputs, place: str, system: str, level: float) -> str:
    rates = goodputs.of(place, system, level)
    topology = goodputs.ranked[place, system][0]
    noise = f" ± {rates.noise:.2g}" if isfinite(rates.noise) else ""
    return f"{system} {rates.mean:.3g}{noise} ({topology})"
