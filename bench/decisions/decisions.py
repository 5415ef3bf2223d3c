"""The decisions that ``headway bench policies`` times, each at three sizes."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import NamedTuple

import numpy as np

from bench.decisions import own_units
from bench.decisions.cycle import cycles, planning
from headway.cluster import UnitId
from headway.policies.batching.gamma_ada import tail_slope
from headway.policies.batching.queue import RankedQueue
from headway.policies.batching.uniboost_memguard import MemGuardParams, UniBoostMemGuard
from headway.policies.packing import Room
from headway.policies.packing.pbaa import Pbaa
from headway.policies.placement import DecodeUnit
from headway.policies.placement.iqr_lex import IqrLex
from headway.policies.rescheduling import Requests, UnitReport
from headway.policies.rescheduling.loads import simulate_future
from headway.policies.rescheduling.star import Star, StarParams
from headway.request import Phase, StreamKey

Decide = Callable[[], object]
SCALES = (0.25, 1.0, 4.0)
NUM_HOLDERS = 8
"""Units that hold a part of a prompt's prefix."""


@dataclass(frozen=True, slots=True)
class TimedDecision:
    """A decision at one size; ``target_ms`` is for the size that the target names."""

    decision: str
    size: str
    median_ms: float
    best_ms: float
    target_ms: float | None

    @property
    def met(self) -> bool | None:
        """Return whether the median keeps the target; None without one."""
        return None if self.target_ms is None else self.median_ms <= self.target_ms


class DecisionCase(NamedTuple):
    """``prepare(scale)`` gives the size, and what makes decisions, each on fresh state."""

    decision: str
    target_ms: float
    prepare: Callable[[float], tuple[str, Callable[[], Decide]]]


def measure_all(repeats: int) -> list[TimedDecision]:
    """Yield every case at every scale; its target holds at scale 1."""
    rows = []
    for case in CASES:
        for scale in SCALES:
            size, decision = case.prepare(scale)
            times = [_time(decision()) for _ in range(repeats + 2)][2:]
            target = case.target_ms if scale == 1.0 else None
            rows.append(
                TimedDecision(
                    case.decision, size, 1e3 * statistics.median(times), 1e3 * min(times), target
                )
            )
    return rows


def _time(decide: Decide) -> float:
    began_at = time.perf_counter()
    decide()
    return time.perf_counter() - began_at


# --- packing and placement ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: StreamKey
    num_tokens: int
    arrival_at: float
    num_growth_tokens: int = 64
    predicted_remaining: float = 0.0
    bucket: int = 0
    barred: tuple[UnitId, ...] = ()
    opens_answer: bool = True


def _waiting(rng: random.Random, num_requests: int) -> list[_Waiting]:
    return [
        _Waiting(StreamKey("gateway", n), 1 + int(3072 * rng.betavariate(1, 2)), rng.random())
        for n in range(num_requests)
    ]


def _unit(index: int) -> UnitId:
    return UnitId(f"worker-{index // 8:03}", index % 8)


def _packing(scale: float, cached: bool) -> tuple[str, Callable[[], Decide]]:
    num_requests, num_units = int(1000 * scale), int(320 * scale)
    requests = _waiting(random.Random(1), num_requests)
    rng = random.Random(3)
    holders = [
        {_unit(rng.randrange(num_units)): rng.randrange(1024) for _ in range(NUM_HOLDERS)}
        for _ in requests
    ]

    def hits(request: _Waiting) -> dict[UnitId, int]:
        return holders[request.key.stream_id]

    loads = random.Random(2)

    def decision() -> Decide:
        rooms = [
            Room(_unit(u), int(3072 * loads.random()), 4000, 100, 16, empty=False)
            for u in range(num_units)
        ]
        return partial(
            Pbaa().pack, requests[:100], requests[100:], rooms, hits=hits if cached else None
        )

    return f"{num_requests} requests, {num_units} DP units", decision


def _placement(scale: float) -> tuple[str, Callable[[], Decide]]:
    num_requests, num_units = int(1000 * scale), int(320 * scale)
    requests = _waiting(random.Random(1), num_requests)

    rng = random.Random(2)

    def decision() -> Decide:
        units = [
            DecodeUnit(_unit(u), rng.randrange(64), rng.randrange(70_000), 6000, 10_000, 16)
            for u in range(num_units)
        ]
        return partial(IqrLex().place, requests, units)

    return f"{num_requests} requests, {num_units} DP units", decision


# --- batching -------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Queued:
    """A request of one DP unit; what a batching policy reads."""

    key: StreamKey
    arrival_at: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    running: bool = False
    decoding: bool = False
    phase: Phase = Phase.ANSWERING
    num_cached_tokens: int = 0
    num_hit_tokens: int = 0
    attained_tokens: int = 0
    num_kv_tokens: int = 0
    num_phase_tokens: int = 0
    predicted_remaining: float | None = None
    true_remaining: int | None = None
    reasons: bool = False
    opens_answer: bool = False
    is_read: bool = True
    in_hand_until: float = 0.0
    num_preemptions: int = 0
    served: float = 0.0
    tenant: str = ""

    @property
    def due_at(self) -> float:
        """Its arrival: it has no class."""
        return self.arrival_at

    @property
    def answer_due_at(self) -> float:
        """Infinite: it has no class."""
        return inf

    @property
    def yields(self) -> bool:
        """False: it has no class."""
        return False


def _ordering(scale: float) -> tuple[str, Callable[[], Decide]]:
    """Make a pass: 256 are served and move on by a token, one ends and one arrives."""
    num_queued, num_served = int(10_000 * scale), 256
    rng = random.Random(1)
    policy = UniBoostMemGuard(MemGuardParams(gamma=0.05, seconds_per_token=1e-3))
    queue: RankedQueue[_Queued] = RankedQueue(policy)
    numbers = count()

    def arrive(*, running: bool) -> None:
        key = StreamKey("gateway", next(numbers))
        queue.touch(
            _Queued(key, 100 * rng.random(), rng.randrange(1, 4096), running=running), now=100.0
        )

    for number in range(num_queued):
        arrive(running=number < num_served)

    def decide() -> object:
        served = [place[2] for place in queue.running[:num_served]]
        queue.settle(served, now=100.0)
        queue.discard(served[0].candidate.key)
        arrive(running=True)
        return served

    def decision() -> Decide:
        for place in queue.running:
            request = place[2].candidate
            request.attained_tokens += 1
            request.num_output_tokens += 1
        return decide

    return f"{num_served} of {num_queued:,} requests", decision


def _fit(scale: float) -> tuple[str, Callable[[], Decide]]:
    num_samples = int(10_000 * scale)
    times = np.random.default_rng(1).exponential(20.0, num_samples)
    return f"{num_samples:,} response times", lambda: partial(tail_slope, times)


# --- rescheduling ---------------------------------------------------------------------


def _moves(scale: float, simulated: bool) -> tuple[str, Callable[[], Decide]]:
    num_units, num_requests = int(256 * scale), 64
    star = Star(StarParams(num_steps=64))
    rng = np.random.default_rng(1)
    reports = []
    for number in range(num_units):
        tokens = rng.integers(100, 4000, num_requests)
        remaining = rng.exponential(4000.0, num_requests)
        keys = tuple(StreamKey("gateway", number * num_requests + r) for r in range(num_requests))
        reports.append((UnitId(f"worker-{number:04}", 0), keys, tokens, remaining))

    def units() -> list[UnitReport]:
        return [
            UnitReport(
                unit,
                400_000,
                Requests(keys, tokens, remaining),
                int(tokens.sum()),
                simulate_future(tokens, remaining, star.horizon) if simulated else np.empty(0),
            )
            for unit, keys, tokens, remaining in reports
        ]

    def decision() -> Decide:
        return partial(star.moves, units(), frozenset(), now=0.0)

    return f"{num_units} instances × {num_requests}, H = 64", decision


CASES = (
    DecisionCase("PBAA", 1.0, lambda scale: _packing(scale, cached=False)),
    DecisionCase("PBAA, cache-aware", 5.0, lambda scale: _packing(scale, cached=True)),
    DecisionCase("an own unit", 1.0, own_units.one),
    DecisionCase("own units, a look", 5.0, own_units.look),
    DecisionCase("IQR-lex", 5.0, _placement),
    DecisionCase("UniBoost, one pass", 0.1, _ordering),
    DecisionCase("a worker's pass", 0.3, planning),
    DecisionCase("γ-Ada, refit", 2.0, _fit),
    DecisionCase("scheduler cycle", 5.0, cycles),
    DecisionCase("STAR, raw loads", 10.0, lambda scale: _moves(scale, simulated=False)),
    DecisionCase("STAR, pre-simulated", 3.0, lambda scale: _moves(scale, simulated=True)),
)
