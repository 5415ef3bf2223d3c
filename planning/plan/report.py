"""A plan as its reader gets it: the cheapest, how sure that is, and what breaks first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planning.plan.candidate import Goal
from planning.plan.confirm import Confirmed
from planning.plan.trial import Outcome

_WHERE = {
    "ttft": "TTFT, which prefillers decide",
    "ttfat": "TTFAT, which decoders decide",
    "tpot": "TPOT, which decoders decide",
    "ttlt": "TTLT, which decoders decide",
    "end": "the end: longer than an instance's memory, or served by nobody",
}


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """All that was found: ``rate`` in ``unit``, ``growth`` as a factor of it.

    ``best``: the cheapest, fixed or autoscaled; ``fixed``: the cheapest fixed fleet. ``broken``:
    its result just above ``growth``. ``smaller``: the best with an instance less than it has.
    ``plain``: the best topology of the plain preset, None where it was not tried or keeps no goal.
    """

    goal: Goal
    rate: float
    best: Confirmed
    fixed: Confirmed
    confirmed: Sequence[Confirmed]
    growth: float
    broken: Outcome
    smaller: Outcome | None
    unit: str = "requests/s"
    plain: Outcome | None = None


def rows(plan: CapacityPlan) -> Iterator[Sequence[str]]:
    """Yield the finalists, cheapest first: name, GPUs, attainment, interval, seeds."""
    for each in sorted(plan.confirmed, key=lambda c: (c.num_gpus, -c.attainment)):
        mark = "*" if each is plan.best else ""
        by_seed = " ".join(percent(share) for share in each.by_seed)
        yield each.name + mark, _number(each), interval(each), by_seed


def sentences(plan: CapacityPlan) -> Iterator[str]:
    """Yield what the table does not show."""
    best, fixed, goal = plan.best, plan.fixed, plan.goal
    margin = best.attainment - goal.attainment
    yield (
        f"cheapest: {best.name}, {_gpus(best)}: "
        f"{interval(best)} % of the requests keep the limits, "
        f"{percent(margin)} points above {percent(goal.attainment)} %"
    )
    if margin < best.error:
        yield "the margin is smaller than its interval: a load like this one may miss the goal"
    if plan.plain is not None and best.candidate.preset != plan.plain.candidate.preset:
        plain = plan.plain.candidate
        yield (
            f"plain, at its best topology: {plain.name}, {plain.num_gpus} "
            f"GPU{'s' * (plain.num_gpus != 1)}: {percent(plan.plain.attainment)} % keep the limits"
        )
    if best is not fixed:
        saved = 1 - best.num_gpus / fixed.num_gpus
        yield (
            f"fixed: {fixed.name}, {_gpus(fixed)}: autoscaled costs {percent(saved)} % less; the "
            "load's growth and a GPU less are of the fixed fleet"
        )
    limit = _most_missed(plan.broken)
    if plan.broken.attainment < goal.attainment:
        yield (
            f"grows to {plan.growth * plan.rate:.3g} {plan.unit} ({plan.growth:.2f} times the "
            f"load); just above, {percent(plan.broken.attainment)} % keep the limits, and what "
            f"breaks first is {_WHERE.get(limit, limit)}"
        )
    else:
        yield f"still keeps the goal at {plan.growth:.2f} times the load"
    if plan.smaller is not None:
        saved_gpus = fixed.candidate.num_gpus - plan.smaller.candidate.num_gpus
        yield (
            f"with {saved_gpus} GPU{'s' * (saved_gpus != 1)} less "
            f"({plan.smaller.candidate.topology}): "
            f"{percent(plan.smaller.attainment)} % keep the limits"
        )


def nothing_keeps(best: Outcome | Confirmed | None, goal: Goal, most_gpus: int) -> str:
    """Return that nothing keeps the goal, what comes nearest, and the ways out.

    ``best``: that, over views or on the cores; None where nothing was tried.
    """
    said = f"nothing within {most_gpus} GPUs keeps the goal, {percent(goal.attainment)} %"
    if best is None:
        return f"{said}: prompts alone keep more instances busy; give more --max-gpus"
    if isinstance(best, Confirmed):
        nearest = f"{said}, on the cores: {best.name} comes nearest, with {interval(best)} %"
    else:
        limit = _most_missed(best)
        nearest = (
            f"{said}: {best.candidate.name} comes nearest, with {percent(best.attainment)} %, "
            f"and most requests miss {_WHERE.get(limit, limit)}"
        )
    return f"{nearest}; give more --max-gpus, or another --slo"


def _number(confirmed: Confirmed) -> str:
    return (
        f"{confirmed.num_gpus:.1f}"
        if confirmed.bounds is not None
        else str(confirmed.candidate.num_gpus)
    )


def _gpus(confirmed: Confirmed) -> str:
    number = _number(confirmed)
    return f"{number} GPU{'s' * (number != '1')}{' in the mean' * (confirmed.bounds is not None)}"


def _most_missed(outcome: Outcome) -> str:
    return outcome.missed.most_common(1)[0][0] if outcome.missed else "nothing"


def interval(confirmed: Confirmed) -> str:
    """Return the attainment and its 95 % interval in percent: ``97.3 ± 0.4``, ``100.0 (≥ 99.0)``.

    Bounds of all and of none are rounded away from them.
    """
    attainment = percent(confirmed.attainment)
    if confirmed.attainment == 1.0:
        return f"{attainment} (≥ {math.floor(1000 * (1 - confirmed.error)) / 10:.1f})"
    if confirmed.attainment == 0.0:
        return f"{attainment} (≤ {math.ceil(1000 * confirmed.error) / 10:.1f})"
    return f"{attainment} ± {percent(confirmed.error)}"


def percent(share: float) -> str:
    """Return a share as a percentage with a decimal."""
    return f"{100 * share:.1f}"
