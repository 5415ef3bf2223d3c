"""Staggered Batch Scheduling: decode placement over 32 units in lock-step.

A closed population of 35 requests a unit, log-normal inputs (σ 1.6), each replaced when it ends.
Only the placement policies are at work, so the batch is kept in arrays: no wire, no scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.blocks import blocks_for
from headway.cluster import UnitId
from headway.cost.profile import load_profile
from headway.policies import registry
from headway.policies.placement import DecodeUnit, Placement
from headway.request import StreamKey
from studies import compared
from studies.claims import Bar, Claim
from studies.compared import Compared, Expected, Quantity
from studies.runs import Job, Results, Row

PROFILE = "deepseek-v3-h800-decode-dp32"
PER_UNIT = 35
INPUT_MEDIAN, INPUT_SIGMA, MOST_INPUT = 700.0, 1.6, 32_768  # a mean of about 2,000
OUTPUT_MEAN = 500.0
NUM_PASSES, NUM_WARM_UP = 2500, 700
BASELINE = "round-robin"
RULES = ("least-kv", "lex", "iqr-lex", "min-cost")
WINDOWS = {"every pass": 1, "every 10 passes": 10}
"""Passes from one placement to the next."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A prefilled request that waits for a unit."""

    key: StreamKey
    num_tokens: int
    row: int
    arrival_at: float = 0.0
    num_growth_tokens: int = 1
    predicted_remaining: float = 0.0
    bucket: int = 0
    barred: tuple[UnitId, ...] = ()


class Batch:
    """The requests as arrays: unit (-1: none yet), KV tokens, tokens still to come."""

    def __init__(self, num_units: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        count = num_units * PER_UNIT
        self.num_units = num_units
        self.unit = np.full(count, -1)
        self.kv_tokens = self._inputs(count)
        self.remaining = self._outputs(count)
        # the first ones have run for a while
        grown = (self.remaining * self._rng.random(count)).astype(int)
        self.kv_tokens += grown
        self.remaining = np.maximum(1, self.remaining - grown)
        self.num_drawn = count

    def _inputs(self, count: int) -> Array:
        drawn = self._rng.lognormal(math.log(INPUT_MEDIAN), INPUT_SIGMA, count)
        return np.asarray(np.clip(drawn.astype(int), 1, MOST_INPUT))

    def _outputs(self, count: int) -> Array:
        return np.asarray(np.maximum(1, self._rng.exponential(OUTPUT_MEAN, count).astype(int)))

    def loads(self) -> tuple[Array, Array]:
        """Return B and K of every unit."""
        placed = self.unit >= 0
        num_requests = np.bincount(self.unit[placed], minlength=self.num_units)
        kv = np.bincount(self.unit[placed], self.kv_tokens[placed], self.num_units)
        return num_requests, kv

    def step(self) -> int:
        """Make a token for every placed request, replace those that end; return tokens made."""
        placed = self.unit >= 0
        self.kv_tokens[placed] += 1
        self.remaining[placed] -= 1
        ended = np.flatnonzero(placed & (self.remaining <= 0))
        self.unit[ended] = -1
        self.kv_tokens[ended] = self._inputs(len(ended))
        self.remaining[ended] = self._outputs(len(ended))
        self.num_drawn += len(ended)
        return int(placed.sum())

    def waiting(self) -> list[Newcomer]:
        """Return the requests that have no unit."""
        rows = np.flatnonzero(self.unit < 0).tolist()
        return [Newcomer(StreamKey("study", row), int(self.kv_tokens[row]), row) for row in rows]


def measure(job: Job) -> Row:
    """Run once: a scenario is one of WINDOWS, a system a placement policy; no rate, it is full."""
    profile = load_profile(PROFILE)
    policy: Placement = registry.make("placement", job.system)
    batch = Batch(profile.num_units, job.seed)
    tokens, seconds, sigmas = 0, 0.0, []
    for number in range(NUM_PASSES):
        if number % WINDOWS[job.scenario] == 0:
            _place(policy, batch, profile.kv_capacity_tokens // profile.block_size)
        num_requests, kv = batch.loads()
        elapsed = profile.pass_time.seconds(0, 0, float(num_requests.max()), float(kv.max()))
        made = batch.step()
        if number >= NUM_WARM_UP:
            tokens, seconds = tokens + made, seconds + elapsed
            sigmas.append(float(kv.std()))
    return {"tokens_per_s": tokens / seconds, "sigma": float(np.mean(sigmas))}


def _place(policy: Placement, batch: Batch, num_blocks: int, block_size: int = 16) -> None:
    waiting = batch.waiting()
    if not waiting:
        return
    num_requests, kv = batch.loads()
    units = [
        DecodeUnit(
            UnitId("decode", unit),
            int(num_requests[unit]),
            int(kv[unit]),
            num_blocks - blocks_for(int(kv[unit]), block_size) - int(num_requests[unit]),
            num_blocks,
            block_size,
        )
        for unit in range(batch.num_units)
    ]
    for choice in policy.place(waiting, units):
        batch.unit[choice.request.row] = choice.unit.unit


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare throughput and the band of KV loads, for each rule and window."""
    jobs = [Job(w, rule, 0.0, s) for w in WINDOWS for rule in (BASELINE, *RULES) for s in seeds]
    results = Results.of(measure, jobs, num_processes)
    rows = [row for window in WINDOWS for rule in RULES for row in _rows(window, rule)]
    places = dict.fromkeys(WINDOWS, f"32 units × {PER_UNIT} requests")
    return compared.claims("sbs", rows, places, results)


_OF_PAPER = "iqr-lex"
_WHY = {
    "every pass": "without the mask (lex) it does better",
    "every 10 passes": "a masked unit's B falls, and B-first then draws requests to it",
}


def _rows(window: str, rule: str) -> Iterator[Compared]:
    faster, even = Expected("-", Bar(0.0, at_least=True)), Expected("-", Bar(0.0))
    if rule == _OF_PAPER:
        faster = Expected("+15 %", Bar(0.15, at_least=True), _WHY[window])
        even = Expected("±45k to ±20k (-56 %)", Bar(-0.5))
    for claim, quantity, asked in (
        ("decode throughput", Quantity("tokens_per_s", "tokens/s"), faster),
        ("spread of KV loads over units", Quantity("sigma", "tokens"), even),
    ):
        said = f"{claim} by {rule}, {window}"
        yield Compared(said, (window, 0.0), quantity, (BASELINE, rule), asked)
