"""Arrival processes: instants in seconds after the start, ascending, from a seeded generator."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from headway.errors import invalid

PROCESSES = ("poisson", "gamma", "constant")


def gaps(
    process: str, rate: float, rng: random.Random, *, burstiness: float = 1.0
) -> Iterator[float]:
    """Endless gaps with a mean of 1/``rate``.

    ``burstiness`` is the gamma process's shape: 1 is Poisson, below 1 is burstier (the gaps'
    coefficient of variation is burstiness^-1/2). ``rate`` may be inf: everything at once.
    """
    if not rate > 0.0:
        raise invalid("rate", rate, "over 0 requests/s")
    if process not in PROCESSES:
        raise invalid("arrivals", process, f"one of {', '.join(PROCESSES)}")
    if not 0.0 < burstiness < math.inf:
        raise invalid("burstiness", burstiness, "over 0 (1: Poisson, less: burstier)")
    while True:
        if math.isinf(rate):
            yield 0.0
        elif process == "poisson":
            yield rng.expovariate(rate)
        elif process == "gamma":
            yield rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
        else:
            yield 1.0 / rate


def arrivals(
    process: str,
    rate: float,
    rng: random.Random,
    *,
    burstiness: float = 1.0,
    num_requests: int | None = None,
    duration: float | None = None,
) -> list[float]:
    """Instants, the first after the first gap: ``num_requests`` of them, none past ``duration``."""
    if num_requests is None and (duration is None or math.isinf(rate)):
        raise invalid("num_requests", num_requests, "given, where nothing else ends the arrivals")
    instants: Iterator[float] = itertools.accumulate(
        gaps(process, rate, rng, burstiness=burstiness)
    )
    if duration is not None:
        instants = itertools.takewhile(lambda at: at <= duration, instants)
    return list(itertools.islice(instants, num_requests))
