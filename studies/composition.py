"""The five papers as one pipeline, compared with each alone and a plain deployment, on equal GPUs.

Four GPUs serve a cell of ``dominance``: 40 % of the requests reason, and arrivals come in bursts of
three times the rate. Every system has its own best topology; ours without one of its stages has
that of ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.class_metrics import TITLES
from studies.best import best_topologies, saturation
from studies.cells import TRIPLE, Cell
from studies.claims import Bar, Claim, PerSeed
from studies.compared import Expected, judged
from studies.dominance import attainments, measured
from studies.runs import Job, Results, Row
from studies.systems import BY_LENGTH, ORDERS, OURS, PLAIN, RECENT, RIVALS, SINGLES, STAGES

PAPER = "composition"
SCENARIO = "4 GPUs, bursts × 3"
CELL = Cell(bursts=TRIPLE, num_instances=4)
SHARES = (0.7, 0.85, 1.0)
_CHOSEN_AT = 0.85
_ALL = 0.995  # where nearly all keep their SLO, a few requests of thousands lead nowhere
_NOT_WORSE = Bar(0.0, at_least=True, by_points=True)


def measure(job: Job) -> Row:
    """Run once."""
    return measured(CELL, job)


@dataclass(frozen=True, slots=True)
class Composition:
    """The rows of all systems; ``rates``: by share of saturation. ``best``: topologies."""

    results: Results
    rates: Mapping[float, float]
    best: Mapping[tuple[str, str], str]

    def sample(self, system: str, share: float, figure: str = "attainment") -> PerSeed:
        """Return a figure over the seeds."""
        return self.results.sample(SCENARIO, system, self.rates[share], figure)


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare with a plain deployment, with each paper and with ours less each stage."""
    all_ = compare(seeds, num_processes)
    return [
        *(_against(all_, share, (PLAIN,)) for share in SHARES),
        *(_against(all_, share, ORDERS) for share in SHARES),
        *(_against(all_, share, RECENT) for share in SHARES),
        *(_against(all_, share, SINGLES) for share in SHARES),
        *(_against(all_, share, RIVALS, BY_LENGTH) for share in SHARES),
        *(_ablation(all_, stage) for stage in STAGES),
    ]


def compare(seeds: Sequence[int], num_processes: int) -> Composition:
    """Measure saturation, choose topologies, and run all systems."""
    carried = saturation(measure, {SCENARIO: CELL.topologies}, num_processes)[SCENARIO]
    rates = {share: round(share * carried, 3) for share in SHARES}
    places = {SCENARIO: (rates[_CHOSEN_AT], CELL.set_ups)}
    owned = (*RIVALS, OURS, BY_LENGTH)
    chosen = best_topologies(measure, places, lambda _: owned, num_processes)
    best = {**chosen, **{(SCENARIO, stage): chosen[SCENARIO, OURS] for stage in STAGES}}
    jobs = [
        Job(SCENARIO, system, rate, seed, best[SCENARIO, system])
        for system in (*owned, *STAGES)
        for rate in rates.values()
        for seed in seeds
    ]
    return Composition(Results.of(measure, jobs, num_processes), rates, best)


def _of_users(all_: Composition, system: str, share: float) -> str:
    """Say the tails of each class; seconds."""
    row = next(iter(all_.results.rows.values()))
    tails = (
        f"{title} {all_.sample(system, share, name).mean:.3g}"
        for name, title in TITLES.items()
        if name in row
    )
    return f"{system}: {', '.join(tails)}"


def _against(all_: Composition, share: float, systems: Sequence[str], ours: str = OURS) -> Claim:
    """Compare with the best of some systems."""
    rate = all_.rates[share]
    other = all_.results.best(SCENARIO, systems, rate, "attainment", most=True)
    before, after = all_.sample(other, share), all_.sample(ours, share)
    kinds = {
        (PLAIN,): "a plain deployment",
        ORDERS: "the best plain order",
        RECENT: "the best of 2026",
        RIVALS: "the best of all others",
    }
    against = kinds.get(tuple(systems), "the best single paper")
    whose = "" if ours == OURS else f" of {ours}"
    claim = judged(
        PAPER,
        f"SLO attainment{whose} against {against}, {share:.0%}",
        f"{SCENARIO}, {rate:g} requests/s; share",
        Expected("never worse", _NOT_WORSE),
        (before, after),
        other,
    )
    is_full = min(after.mean, before.mean) >= _ALL
    said = [
        claim.note,
        attainments(all_.results, SCENARIO, (*systems, ours), rate, all_.best),
        *(_of_users(all_, system, share) for system in (other, ours)),
    ]
    return replace(
        claim,
        holds=is_full or claim.holds,
        asked=f"{claim.asked}, or both {_ALL:.1%} or more",
        note="; ".join(said),
    )


def _ablation(all_: Composition, stage: str) -> Claim:
    """Measure what a stage adds, in the mean over all loads."""
    samples = {s: [all_.sample(s, share) for share in SHARES] for s in (stage, OURS)}
    before, after = (
        PerSeed(tuple(map(statistics.fmean, zip(*(each.values for each in loads), strict=True))))
        for loads in samples.values()
    )
    adds = (o.mean - w.mean for w, o in zip(samples[stage], samples[OURS], strict=True))
    rates = ", ".join(f"{rate:g}" for rate in all_.rates.values())
    claim = judged(
        PAPER,
        f"ablation: {stage}",
        f"{SCENARIO}, {rates} requests/s; share",
        Expected("each stage adds or is questioned", _NOT_WORSE),
        (before, after),
        f"{OURS} {stage}",
    )
    added = ", ".join(f"{each:+.1%}" for each in adds)
    return replace(claim, note=f"{claim.note}; the stage adds {added}")
