"""The demo's requests: a mix of three kinds, offered in proportion to what a cluster carries.

Four in ten reason: the small model's chats. The others are completions, whose output is all
answer and as long as asked for. Nobody reads one in ten as it comes; the rest stand for chats.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from types import MappingProxyType

from bench.serve.plan import PATHS, STREAM_OPTIONS, Options, Plan, Planned, make_plan, timed
from headway.errors import Code, HeadwayError

REASONING_SHARE = 0.4
UNREAD_SHARE = 0.1
LEAST_REQUESTS = 24
NUM_WARM_UP = 120
"""Requests of the mix in the loop before."""
_ANSWER_TOKENS = range(40, 161)
_PROMPT_TOKENS = range(20, 200)
_TEXT = range(32, 127)  # token ids that no vocabulary gives to a special token


@dataclass(frozen=True, slots=True)
class Regime:
    """Load over time, as a share of saturation: ``share``, and ``peak`` for a part of the time.

    ``begins`` and ``ends`` bound the peak, as shares of the time.
    """

    name: str
    share: float
    peak: float
    begins: float
    ends: float

    @property
    def mean(self) -> float:
        """Mean load, as a share of saturation."""
        return self.share + (self.peak - self.share) * (self.ends - self.begins)

    def instants(self, num_requests: int, seconds: float, rng: random.Random) -> list[float]:
        """Draw so many arrivals, ascending: a Poisson process of which the number is known."""
        return sorted(self._at(rng.random()) * seconds for _ in range(num_requests))

    def _at(self, drawn: float) -> float:
        """Return the share of the time before which the ``drawn`` share of the load arrives."""
        load, quiet = drawn * self.mean, self.share * self.begins
        if load <= quiet:
            return load / self.share
        peak = self.peak * (self.ends - self.begins)
        if load <= quiet + peak:
            return self.begins + (load - quiet) / self.peak
        return self.ends + (load - quiet - peak) / self.share


BURST = Regime("burst", 0.5, 2.0, 1 / 3, 1 / 2)
OVERLOAD = Regime("overload", 1.3, 1.3, 0.0, 1.0)
REGIMES = MappingProxyType({each.name: each for each in (BURST, OVERLOAD)})


@dataclass(frozen=True, slots=True)
class LoadBounds:
    """The most seconds of arrivals and the most requests of one regime."""

    seconds: float
    num_requests: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A regime in requests, and in the seconds within which they arrive."""

    regime: Regime
    num_requests: int
    seconds: float

    @classmethod
    def of(cls, regime: Regime, saturation: float, bounds: LoadBounds) -> Offer:
        """Scale a regime to a cluster that carries ``saturation`` requests/s.

        Requests beyond the bound shorten the regime: its loads stay. FAILED_PRECONDITION for a
        cluster that carries too few requests in the time.
        """
        rate = saturation * regime.mean
        num_requests = min(int(rate * bounds.seconds), bounds.num_requests)
        if num_requests < LEAST_REQUESTS:
            message = (
                f"this cluster carries {saturation:.2g} requests/s: in {bounds.seconds:g} s the "
                f"regime {regime.name} has {num_requests} requests, and tails need "
                f"{LEAST_REQUESTS} or more; give a longer --for"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message)
        return cls(regime, num_requests, num_requests / rate)

    @property
    def rate(self) -> float:
        """Mean rate, requests/s."""
        return self.num_requests / self.seconds

    @property
    def peak_seconds(self) -> float:
        """Length of the peak."""
        return (self.regime.ends - self.regime.begins) * self.seconds

    def __str__(self) -> str:
        """Say what is offered, in one line."""
        regime = self.regime
        said = f"{self.num_requests} requests in {self.seconds:.0f} s, {self.rate:.1f} a second"
        if regime.peak == regime.share:
            return f"{said}: {regime.share:.0%} of saturation all the time"
        return (
            f"{said}: {regime.mean:.0%} of saturation on average, {regime.share:.0%} before and "
            f"after {self.peak_seconds:.1f} s at {regime.peak:.0%}"
        )

    def plan(self, model: str, seed: int, max_tokens: int = 0) -> Plan:
        """Plan the requests; the same seed gives the same ones at the same instants.

        ``max_tokens`` is a chat's, 0 for any number.
        """
        rng = random.Random(f"{self.regime.name} {seed}")
        instants = self.regime.instants(self.num_requests, self.seconds, rng)
        return timed(mix(model, self.num_requests, rng, max_tokens), instants)


# --- requests -------------------------------------------------------------------------


def unread(plan: Plan) -> Plan:
    """Return the plan without pacing: what a cluster carries does not depend on its readers."""
    requests = [replace(one, body=_unpaced(one.body), is_read=False) for one in plan.requests]
    return replace(plan, requests=requests)


def mix(model: str, num_requests: int, rng: random.Random, max_tokens: int = 0) -> Plan:
    """Draw requests of the three kinds in random order, all at instant 0.

    The numbers of each kind follow from ``num_requests`` alone, and are 1 or more from 3 on.
    """
    num_reasoning = max(1, round(REASONING_SHARE * num_requests))
    num_unread = max(1, round(UNREAD_SHARE * num_requests))
    requests = _reasoning(model, num_reasoning, rng, max_tokens)
    for number in range(num_requests - num_reasoning):
        one = completion(model, rng, rng.choice(_PROMPT_TOKENS), rng.choice(_ANSWER_TOKENS))
        is_read = number >= num_unread
        requests.append(one if is_read else replace(one, body=_unpaced(one.body), is_read=False))
    rng.shuffle(requests)
    return Plan(
        PATHS["chat"], [replace(one, index=place) for place, one in enumerate(requests)], ()
    )


def completion(model: str, rng: random.Random, num_prompt: int, num_output: int) -> Planned:
    """Draw a request of random text, whose output has so many tokens."""
    body = {
        "model": model,
        "stream": True,
        "stream_options": STREAM_OPTIONS,
        "prompt": rng.choices(_TEXT, k=num_prompt),
        "max_tokens": num_output,
        "ignore_eos": True,
        "temperature": 0.7,
        "seed": rng.randrange(2**31),
    }
    raw = json.dumps(body).encode()
    return Planned(0, 0.0, raw, "chat", None, path=PATHS["completions"], reasons=False)


def _reasoning(model: str, num_requests: int, rng: random.Random, max_tokens: int) -> list[Planned]:
    """Draw the small model's problems, whose answers are known."""
    seed, most = rng.randrange(2**31), max_tokens or None
    options = Options(
        model,
        rate=1.0,
        num_requests=num_requests,
        prompts="mini",
        seed=seed,
        max_tokens=most,
        counts_tokens=True,
    )
    return list(make_plan(options).requests)


def _unpaced(body: bytes) -> bytes:
    return json.dumps({**json.loads(body), "headway": {"pacing": False}}).encode()
