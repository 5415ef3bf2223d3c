"""The load of ``headway bench burst``, and what every policy is told of the instances."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any

from bench.serve.plan import Options, Plan, make_plan, timed
from headway.cost.buckets import NUM_BUCKETS
from headway.cost.profile import Profile
from headway.workload.arrivals import arrivals

UTILISATION = 0.7
"""Share of every instance that policies plan with."""
_OVER = 1.05
_BURST_RATE = 10.0  # requests/s
_LEAST_OUTPUT = 16

CONTENDERS = MappingProxyType(
    {
        "tokenscale": "tokenscale",
        "no-convertibles": "tokenscale",
        "aibrix": "aibrix",
        "blitzscale": "blitzscale",
        "distserve": "distserve",
        "utilisation": "utilisation",
        "fixed": "fixed",
        "fixed-most": "fixed",
    }
)
"""The scaling policy of each name; ``fixed-most`` has the most instances from the beginning."""


@dataclass(frozen=True, slots=True)
class BurstLoad:
    """Poisson arrivals at ``rate`` (1/s), at ``burst_rate`` from ``before`` (s) on for ``burst`` s.

    ``after``: seconds at ``rate`` again. Every request has so many tokens.
    """

    prompt_tokens: int
    output_tokens: int
    rate: float = 1.0
    burst_rate: float = _BURST_RATE
    before: float = 10.0
    burst: float = 20.0
    after: float = 40.0

    @property
    def burst_ends_at(self) -> float:
        """Seconds after the start."""
        return self.before + self.burst

    @property
    def seconds(self) -> float:
        """Seconds of all three."""
        return self.burst_ends_at + self.after

    def instants(self, seed: int) -> list[float]:
        """Return the instants of all arrivals, seconds."""
        rng, begins, instants = random.Random(seed), 0.0, list[float]()
        for rate, seconds in (
            (self.rate, self.before),
            (self.burst_rate, self.burst),
            (self.rate, self.after),
        ):
            instants += [begins + at for at in arrivals("poisson", rate, rng, duration=seconds)]
            begins += seconds
        return instants

    def plan(self, model: str, seed: int) -> Plan:
        """Make the requests: the same for every policy."""
        instants = self.instants(seed)
        options = Options(
            model,
            rate=1.0,
            num_requests=len(instants),
            prompts="random-tokens",
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.output_tokens,
            seed=seed,
        )
        return timed(make_plan(options), instants)


def filling(profile: Profile) -> BurstLoad:
    """Return a burst of requests with so many tokens that it is just too much.

    That is for one prefiller and one decoder at their planned utilisation: the least load that a
    policy by velocities answers with a second one of both.
    """
    rate = _BURST_RATE
    most_input, most_output = profile.buckets.lengths(NUM_BUCKETS - 1)
    num_prompt = ceil(_OVER * UTILISATION * profile.prefill_velocity() / rate)
    num_prompt = max(1, min(num_prompt, int(most_input)))

    def decoders(num_output: int) -> float:
        bucket = profile.buckets.of(num_prompt, num_output)
        return rate * (num_prompt + num_output) / profile.decode_velocity(bucket)

    outputs = range(_LEAST_OUTPUT, int(most_output))
    fitting = (n for n in outputs if decoders(n) >= _OVER * UTILISATION)
    return BurstLoad(num_prompt, next(fitting, int(most_output)))


def scaling_params(
    name: str, profile: Profile, load: BurstLoad, ttft_slo: float
) -> Mapping[str, Any]:
    """Return a contender's parameters: thresholds are what an instance carries by the profile.

    So every policy knows the same of the machine, and plans with the same share of it.
    """
    size = load.prompt_tokens + load.output_tokens
    bucket = profile.buckets.of(load.prompt_tokens, load.output_tokens)
    prefill_per_s = profile.prefill_velocity() / load.prompt_tokens
    decode_per_s = profile.decode_velocity(bucket) / size
    prefilling = max(1.0, prefill_per_s * ttft_slo)
    same = {"target_utilisation": UTILISATION}
    match name:
        case "tokenscale":
            return same
        case "no-convertibles":
            return {**same, "convertibles": False}
        case "distserve":
            return {**same, "prefill_per_s": prefill_per_s, "decode_per_s": decode_per_s}
        case "blitzscale":
            decoding = saturating_batch(profile, load, decode_per_s)
            return {**same, "prefill_requests": prefilling, "decode_requests": decoding}
        case "aibrix":
            return {**same, "prefill_concurrency": prefilling, "decode_memory": 0.7}
        case _:
            return same


def saturating_batch(profile: Profile, load: BurstLoad, requests_per_s: float) -> float:
    """Return how many decode together where so many end per second: Little's law, 1 to most.

    ``B = r · output · t(B)``, and t(B) is linear in B.
    """
    pass_time = profile.pass_time
    context = load.prompt_tokens + load.output_tokens / 2
    tokens_per_s = requests_per_s * load.output_tokens
    rest = 1.0 - tokens_per_s * (pass_time.per_request + pass_time.per_kv_token * context)
    most = min(float(profile.max_batch), profile.kv_capacity_tokens / context)
    if rest <= 0:
        return max(1.0, most)
    return min(max(1.0, tokens_per_s * pass_time.base / rest), most)
