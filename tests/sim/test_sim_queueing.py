"""The simulator against queueing theory: a server that takes one request at a time is M/M/1."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from headway.cluster import Role
from headway.core.settings import Policy
from headway.cost.pass_time import PassTime
from headway.sim.cluster import SimRequest
from headway.sim.records import Record
from studies.runs import run
from tests.fakes.sim_clusters import cluster_of, instance

FCFS = Policy("batching", "fcfs", {})

pytestmark = pytest.mark.slow

STEP = 0.01  # seconds a token
MEAN_TOKENS = 100.0
RATE = 0.7  # requests/s; a service takes 1 s on average
NUM_REQUESTS = 12_000


@pytest.fixture(scope="module")
def records() -> list[Record]:
    rng, now, requests = random.Random(5), 0.0, []
    for number in range(NUM_REQUESTS):
        now += rng.expovariate(RATE)
        tokens = max(1, round(rng.expovariate(1 / MEAN_TOKENS)))
        requests.append(SimRequest(f"r{number}", now, 1, tokens))
    server = instance(Role.UNIFIED, pass_time=PassTime(STEP), kv_capacity_tokens=1 << 20)
    spec = cluster_of(((server, 1),), batching=FCFS, max_running=1, report_interval=1e6)
    return list(run(spec, requests).records)


def test_the_tail_of_response_times_falls_as_theory_says(records: list[Record]) -> None:
    """P(T > t) = exp(−(μ − λ)·t): its slope between the median and P99."""
    times = sorted(record.ttlt or 0.0 for record in records)
    low, high = times[len(times) // 2], times[int(0.99 * len(times))]
    slope = (math.log(0.5) - math.log(0.01)) / (high - low)
    assert slope == pytest.approx(1.0 - RATE, rel=0.08)


def test_the_mean_wait_is_the_textbooks(records: list[Record]) -> None:
    mean = statistics.fmean(record.ttlt or 0.0 for record in records)
    assert mean == pytest.approx(1 / (1.0 - RATE), rel=0.15)
