"""A plan from what the search has found: confirmed, and looked at from both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from headway.sim.spec import Autoscaling
from planning.plan.candidate import Sizing
from planning.plan.confirm import Confirmed, autoscaled, choose, confirm
from planning.plan.load import Load, rate_of, unit_of
from planning.plan.report import CapacityPlan
from planning.plan.search import breaks_at, one_less
from planning.plan.trial import Outcome, Trial

NUM_FINALISTS = 3
PLAIN_PRESET = "vllm-like"
"""The preset that every plan is compared with, at its own best topology."""
_AROUND = range(-3, 3)
"""GPUs around the plan's that a plot shows."""


def make_plan(
    trial: Trial,
    outcomes: Sequence[Outcome],
    loads: Sequence[Load],
    most_gpus: int,
    *,
    autoscales: bool = False,
) -> CapacityPlan | Confirmed:
    """Return the plan; where nothing keeps the goal on the cores within ``most_gpus``, the best."""
    run = partial(_confirmed, trial, loads)
    fixed, confirmed = choose(finalists(outcomes), most_gpus, run, trial.goal)
    if fixed is None:
        return max(confirmed, key=lambda each: each.attainment)
    keep = partial(filter, lambda each: each.attainment >= trial.goal.attainment)
    scaled = autoscaled([*keep(confirmed)], most_gpus, run) if autoscales else []
    best = min((fixed, *keep(scaled)), key=lambda each: each.num_gpus)
    growth, broken = breaks_at(trial, fixed.candidate)
    smaller = one_less(trial, fixed.candidate)
    everybody = [*confirmed, *scaled]
    return CapacityPlan(
        trial.goal,
        rate_of(loads[0]),
        best,
        fixed,
        everybody,
        growth,
        broken,
        smaller,
        unit_of(loads[0]),
        best_plain(outcomes),
    )


def best_plain(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the plain preset's best of the candidates that keep the goal, cheapest first."""
    return next((each for each in outcomes if each.candidate.preset == PLAIN_PRESET), None)


def _confirmed(
    trial: Trial,
    loads: Sequence[Load],
    candidate: Sizing,
    bounds: Autoscaling | None = None,
) -> Confirmed:
    trial.tell(f"{candidate.name}, on the cores")
    return confirm(candidate, loads, trial.goal, trial.network, bounds)


def finalists(outcomes: Sequence[Outcome]) -> list[Sizing]:
    """Return the cheapest ones, of different presets or topologies."""
    return [outcome.candidate for outcome in outcomes[:NUM_FINALISTS]]


def by_gpus(
    trial: Trial, best: Sizing, presets: Sequence[str]
) -> Mapping[str, Mapping[int, float]]:
    """Return the attainment of each preset over GPUs around a plan's, at its best division."""
    table: dict[str, dict[int, float]] = {}
    for preset in presets:
        own = Sizing(preset, best.front, best.back)
        for more in _AROUND:
            sizes = list(_divisions(own, best, more))
            shares = [trial.run(each, whole=True).attainment for each in sizes]
            if shares:
                table.setdefault(preset, {})[sizes[0].num_gpus] = max(shares)
    return table


def _divisions(own: Sizing, best: Sizing, more: int) -> list[Sizing]:
    """Return candidates with so many instances more, divided among roles about as the best."""
    if best.unified:
        number = best.unified + more
        return [own.but(unified=number)] if number > 0 else []
    total = best.prefill + best.decode + best.convertible + more
    share = best.prefill / (best.prefill + best.decode + best.convertible)
    middle = round(share * total)
    pairs = [(n, total - n) for n in (middle - 1, middle, middle + 1)]
    same = [own.but(prefill=p, decode=d) for p, d in pairs if p > 0 and d > 0]
    return [each for each in same if each.num_gpus == same[0].num_gpus]
