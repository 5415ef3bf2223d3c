"""The search: for the fewest instances of each preset, pair of profiles and topology."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil

from headway.cluster import Role
from headway.cost.schema import Profile
from headway.sim.sessions import SessionLoad
from planning.plan.candidate import DISAGGREGATED, UNIFIED, Goal, Params, Sizing
from planning.plan.load import Load
from planning.plan.space import Space
from planning.plan.trial import Outcome, Trial

VARIANTS: dict[str, Sequence[Params]] = {
    "vllm-like": ({"dispatch": {"rule": "least-tokens"}}, {"dispatch": {"rule": "least-kv"}}),
    "sbs": ({"packing": {"order": "boost"}},),
    "tokenscale": ({"dispatch": {"margin": 0.0}},),
}
"""The main parameters of a preset: what is tried where its own need one GPU too many."""


def least(keeps: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the least number from ``low`` to ``high`` that keeps; None if ``high`` does not.

    Whatever is above one that keeps, keeps, too.
    """
    if high < low or not keeps(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle + 1
    return high


def search(trial: Trial, space: Space, most_gpus: int) -> list[Outcome]:
    """Return the cheapest candidates that keep the goal, cheapest first; empty for none.

    For each preset and pair of profiles: unified instances, then prefillers and decoders. The
    cheapest ones are then tried with convertible decoders, and with other parameters, at less.
    """
    best = most_gpus
    for base, topologies in space.bases():
        for sizing in _sizes(trial, base, topologies, best):
            best = min(best, sizing.num_gpus)
    for outcome in keeping(trial):
        if outcome.candidate.num_gpus == best:
            for other in _variants(outcome.candidate):
                trial.keeps(other)
    return keeping(trial)


def keeping(trial: Trial) -> list[Outcome]:
    """Return the candidates tried so far that keep the goal, cheapest first."""
    kept = [o for o in trial.outcomes if o.is_whole and o.attainment >= trial.goal.attainment]
    return sorted(kept, key=lambda o: (o.candidate.num_gpus, -o.attainment, o.candidate.name))


def _sizes(
    trial: Trial, base: Sizing, topologies: Sequence[str], most_gpus: int
) -> Iterator[Sizing]:
    """Yield ever cheaper numbers of instances that keep the goal."""
    best = most_gpus
    if UNIFIED in topologies:
        most = best // base.back.num_gpus
        number = least(lambda n: trial.keeps(base.but(unified=n)), 1, most)
        if number is not None:
            sizing = base.but(unified=number)
            best = sizing.num_gpus
            yield sizing
    if DISAGGREGATED in topologies:
        yield from _pairs(trial, base, best)


def _pairs(trial: Trial, base: Sizing, most_gpus: int) -> Iterator[Sizing]:
    """Yield ever cheaper numbers of prefillers and decoders that keep the goal."""
    best = most_gpus
    fewest_decoders: int | None = None
    num_prefill = _least_prefillers(trial.load, base.front, trial.goal)
    while (room := best - num_prefill * base.front.num_gpus) >= base.back.num_gpus:
        most = room // base.back.num_gpus
        most = most if fewest_decoders is None else min(most, fewest_decoders)
        number = _fewest_decoders(trial, base.but(prefill=num_prefill), most)
        if number is not None:
            if number == fewest_decoders:
                return  # more prefillers save no decoder
            fewest_decoders = number
            sizing = base.but(prefill=num_prefill, decode=number)
            best = min(best, sizing.num_gpus)
            yield sizing
        num_prefill += 1


def _fewest_decoders(trial: Trial, pair: Sizing, most: int) -> int | None:
    return least(lambda number: trial.keeps(pair.but(decode=number)), 1, most)


def _least_prefillers(requests: Load, profile: Profile, goal: Goal) -> int:
    """Return how many are busy from the first arrival to the last limit: fewer cannot do.

    Without a limit on the first token nothing is known, and of sessions, what is cached.
    """
    limit = goal.slo.ttft or goal.slo.ttfat or goal.slo.ttlt
    if goal.slo_of is not None or limit is None or isinstance(requests, SessionLoad):
        return 1
    span = requests[-1].arrival_at - requests[0].arrival_at + limit
    num_tokens = sum(request.num_prompt_tokens for request in requests)
    chunk, units = profile.in_role(Role.PREFILL).chunk_tokens, profile.num_units
    per_token = profile.pass_time.seconds(chunk, 0, 0, 0) / (chunk * units)
    return max(1, ceil(0.8 * goal.attainment * num_tokens * per_token / span))


def _variants(sizing: Sizing) -> Iterator[Sizing]:
    """Yield cheaper relatives: other parameters, and convertible decoders."""
    smaller = [c for c in _one_less(sizing) if c.num_gpus < sizing.num_gpus]
    for candidate, params in product(smaller, VARIANTS.get(sizing.preset, ())):
        yield replace(candidate, params=params)
    if sizing.back.convertible_chunk_tokens is None or sizing.preset == "vllm-like":
        return
    for candidate in smaller:
        for number in (1, 2):
            if candidate.decode >= number:
                yield candidate.but(decode=candidate.decode - number, convertible=number)


def _one_less(sizing: Sizing) -> Iterator[Sizing]:
    for role, count in sizing.counts.items():
        kind = role.value
        is_last = count == 1 and kind in ("prefill", "decode", "unified") and not sizing.convertible
        if not is_last:
            yield sizing.but(**{kind: count - 1})


def one_less(trial: Trial, sizing: Sizing) -> Outcome | None:
    """Return the best result with an instance less; None if every role has a single one."""
    outcomes = [trial.run(each, whole=True) for each in _one_less(sizing)]
    return max(outcomes, key=lambda o: o.attainment, default=None)


def breaks_at(trial: Trial, sizing: Sizing, most: float = 4.0) -> tuple[float, Outcome]:
    """Return by how much the load may grow, within 2 %, and the result just above that."""
    low, high = 1.0, 1.0
    outcome = trial.run(sizing, whole=True)
    while high < most and outcome.attainment >= trial.goal.attainment:
        low, high = high, high * 1.15
        outcome = trial.faster(high).run(sizing, whole=True)
    while high / low > 1.02 and outcome.attainment < trial.goal.attainment:
        middle = (low * high) ** 0.5
        tried = trial.faster(middle).run(sizing, whole=True)
        if tried.attainment >= trial.goal.attainment:
            low = middle
        else:
            high, outcome = middle, tried
    return low, outcome
