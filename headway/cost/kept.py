"""Shares of requests that unified instances and a split keep in time, and which of them pays.

``topology.py`` counts means: how full instances are. Where neither topology is enough, the share of
the requests that each keeps in time decides. For that prompts queue, and batches by chance are
longer than their mean.
"""

from __future__ import annotations

from dataclasses import replace
from math import erfc, exp, inf, pi, sqrt
from statistics import fmean
from typing import NamedTuple

from headway.cost.schema import Profile
from headway.cost.topology import (
    Demand,
    Needs,
    chunk_within,
    decode_seconds,
    prefill_seconds,
    request_cost,
)

PLANNED_PASS = 0.95
"""Share of the promised time that a pass is planned with: its fit errs by a few percent."""
LEAST_FOR_PROMPTS = 0.25
"""Seconds that prompts have in any case for each second of decoding beside them: a fifth of a pass.
So it keeps the promise until decoding alone takes four fifths of that, and no reader, whatever its
class, makes others' prompts crawl."""
_SAMPLES = 8
"""Instants of the time looked at for which a queue is computed."""
_NOTHING = 0.01
"""Share of requests below which nothing is kept: then the topology counts that is less overfull."""
_LOOKS = 3
"""Batches of a request's decoding that count as independent: they turn over while it decodes."""


class Pledge(NamedTuple):
    """Promises to be kept: ``between_tokens`` and ``first_token``, seconds.

    ``seconds``: how long such requests come.
    """

    between_tokens: float = inf
    first_token: float = inf
    seconds: float = 60.0


class KeptShares(NamedTuple):
    """Shares of the requests that keep a goal on as many instances, and the best split of them."""

    unified: float
    split: float
    num_prefill: int
    num_decode: int


def kept_by(demand: Demand, profile: Profile, goal: Pledge, num_instances: int) -> KeptShares:
    """Return what 2 instances or more keep, as unified ones and as the split that keeps most.

    Unified ones cut prompts so that a pass keeps the limit (``core/worker/pass_limit.py``). So
    there prompts wait, and answers do not until decoding leaves prompts a fifth of a pass.
    """
    needs = Needs.of(demand, profile, goal.between_tokens)
    splits = [
        (_kept_by_split(demand, profile, goal, n, num_instances - n), n)
        for n in range(1, num_instances)
    ]
    share, num_prefill = max(  # of those that keep as much the one that is filled least
        splits,
        key=lambda split: (
            round(split[0], 2),
            -max(needs.prefill / split[1], needs.decode / (num_instances - split[1])),
            -split[1],
        ),
    )
    unified = _kept_by_unified(demand, profile, goal, num_instances)
    return KeptShares(unified, share, num_prefill, num_instances - num_prefill)


def _kept_by_split(
    demand: Demand, profile: Profile, goal: Pledge, num_prefill: int, num_decode: int
) -> float:
    prompt = request_cost(demand, profile).prefill
    in_time = _in_time(demand.requests_per_s, prompt, num_prefill, goal)
    return in_time * _batches_fit(demand, profile, goal.between_tokens, num_decode)


def _kept_by_unified(demand: Demand, profile: Profile, goal: Pledge, number: int) -> float:
    base, chunk = profile.pass_time.base, profile.chunk_tokens
    one = replace(demand, requests_per_s=demand.requests_per_s / number / profile.num_units)
    planned = PLANNED_PASS * goal.between_tokens
    decoding = one.requests_per_s * decode_seconds(one, profile)  # a share of the time
    small = max(1.0, chunk_within(one, profile, planned))
    full = prefill_seconds(one, profile, chunk) + base * one.prompt_tokens / chunk
    prompt = max(
        _over(prefill_seconds(one, profile, small), 1 - base / planned - decoding),
        _over(full, 1 - decoding),
    )
    in_time = _in_time(demand.requests_per_s, prompt / profile.num_units, number, goal)
    within = planned / (1 + LEAST_FOR_PROMPTS)
    return in_time * _batches_fit(demand, profile, within, number)


def _over(seconds: float, share: float) -> float:
    return seconds / share if share > 0 else inf


def _in_time(requests_per_s: float, seconds: float, number: int, goal: Pledge) -> float:
    """Return the share of prompts done in time by instances that each take ``seconds`` for one.

    The queue is a Brownian motion that begins at nothing and is reflected there.
    """
    left = goal.first_token - seconds
    if left <= 0:
        return 0.0
    if left == inf or not requests_per_s:
        return 1.0
    drift = requests_per_s * seconds / number - 1
    variance = requests_per_s * (seconds / number) ** 2
    instants = (goal.seconds * (n + 0.5) / _SAMPLES for n in range(_SAMPLES))
    return fmean(_queue_below(left, drift, variance, at) for at in instants)


def _queue_below(wait: float, drift: float, variance: float, at: float) -> float:
    """Return the probability that the queue is below ``wait`` s after ``at`` s."""
    deviation = sqrt(variance * at)
    ahead, behind = (wait - drift * at) / deviation, (wait + drift * at) / deviation
    if behind > 20:  # the tail, which would be 0 times infinity
        mirrored = exp(-ahead * ahead / 2) / (behind * sqrt(2 * pi))
    elif behind > 0:
        mirrored = exp((behind * behind - ahead * ahead) / 2) * _normal(-behind)
    else:
        mirrored = exp(2 * drift * wait / variance) * _normal(-behind)
    return min(1.0, max(0.0, _normal(ahead) - mirrored))


def _batches_fit(demand: Demand, profile: Profile, within: float, number: int) -> float:
    """Return the share of requests whose decode passes all end ``within`` so many seconds.

    The batch is a Poisson number about its mean.
    """
    base, output = profile.pass_time.base, demand.output_tokens
    per_s = demand.requests_per_s / number / profile.num_units
    a_token = decode_seconds(demand, profile) / max(output, 1.0)
    busy = per_s * output * a_token
    if within <= base or busy >= 1:
        return 0.0
    room = min(profile.max_batch, profile.kv_capacity_tokens / max(demand.kv_tokens, 1.0))
    most = min(room, (within - base) / a_token if a_token else inf)
    mean = per_s * output * base / (1 - busy)
    return _normal((most + 0.5 - mean) / sqrt(mean)) ** _LOOKS if mean else 1.0


def _normal(deviations: float) -> float:
    return erfc(-deviations / sqrt(2)) / 2


# --- the choice ------------------------------------------------------------------------------


def pays_split(
    demand: Demand,
    profile: Profile,
    goal: Pledge,
    most: int,
    *,
    planned: float,
    gain: float,
    is_split: bool = False,
) -> bool:
    """Return whether instances are to be prefillers and decoders, ``most`` of them at most.

    The topology changes if the other one needs fewer with ``gain`` more load, or, where neither is
    enough, if it keeps that share of the requests more. Where neither keeps any, the less overfull
    one is left to serve. ``planned``: the share of an instance's time that is planned with.
    """
    needs = Needs.of(demand, profile, goal.between_tokens).over(planned)
    wary = needs.over(1 - gain)
    split, unified = (needs, wary) if is_split else (wary, needs)
    num_split, num_unified = sum(split.num_split), unified.num_unified
    if min(num_split, num_unified) > most >= 2:
        kept = kept_by(demand, profile, goal, most)
        if max(kept.unified, kept.split) < _NOTHING:
            prefill, decode = split.prefill / kept.num_prefill, split.decode / kept.num_decode
            fill = max(prefill, decode) - unified.unified / most
            return fill <= 0 if is_split else fill < 0
        if is_split:
            return kept.unified <= kept.split + gain
        return kept.split > kept.unified + gain
    return num_split <= num_unified if is_split else num_split < num_unified
