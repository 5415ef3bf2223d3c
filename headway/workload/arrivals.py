"""Arrival processes: instants in seconds after the start, ascending, from a seeded generator."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from headway.bounds import Bounded, between, over
from headway.errors import invalid

PROCESSES = ("poisson", "gamma", "constant")


def gaps(
    process: str, rate: float, rng: random.Random, *, burstiness: float = 1.0
) -> Iterator[float]:
    """Yield gaps with a mean of 1/``rate`` without end.

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


@dataclass(frozen=True, slots=True)
class Bursts(Bounded):
    """A load in bursts: arrivals come ``factor`` times as fast in a burst as outside of one.

    Bursts last ``length`` seconds on average and fill ``share`` of the time. The rate goes up and
    down with a sine of ``wave_period`` seconds by ``wave`` of itself.
    Defaults: Azure's conversation trace as TokenScale describes it, without a wave.
    """

    factor: float = between(1, 1e6, default=3.0, name="burst_factor")
    length: float = over(0, default=2.3, name="burst_length")
    share: float = between(0.001, 0.999, default=0.47, name="burst_share")
    wave: float = between(0, 1, default=0.0, name="burst_wave")
    wave_period: float = over(0, default=600.0, name="burst_wave_period")

    def gaps(self, rate: float, rng: random.Random) -> Iterator[float]:
        """Endless gaps with a mean of 1/``rate`` over everything; Poisson inside and outside."""
        if not 0.0 < rate < math.inf:
            raise invalid("rate", rate, "over 0 requests/s, and finite")
        if not self.wave:
            return self._on_off(rate, rng)
        return self._waved(rate, rng)

    def _waved(self, rate: float, rng: random.Random) -> Iterator[float]:
        """Thinned: drawn as at the wave's crest, kept as often as the wave says."""
        crest = 1 + self.wave
        now = waited = 0.0
        for gap in self._on_off(rate * crest, rng):
            now, waited = now + gap, waited + gap
            level = 1 + self.wave * math.sin(2 * math.pi * now / self.wave_period)
            if rng.random() * crest < level:
                yield waited
                waited = 0.0

    def _on_off(self, rate: float, rng: random.Random) -> Iterator[float]:
        """Gaps of bursts without a wave."""
        quiet_rate = rate / (1 + self.share * (self.factor - 1))
        quiet_length = self.length * (1 - self.share) / self.share
        bursting, left, waited = False, rng.expovariate(1 / quiet_length), 0.0
        while True:
            gap = rng.expovariate(quiet_rate * (self.factor if bursting else 1.0))
            if gap <= left:
                yield waited + gap
                left, waited = left - gap, 0.0
            else:  # the next stretch draws anew: an exponential does not remember
                waited, bursting = waited + left, not bursting
                left = rng.expovariate(1 / (self.length if bursting else quiet_length))


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
