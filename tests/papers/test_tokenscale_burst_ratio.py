"""The burst ratio that is measured: next to nothing of steady traffic, and that of real bursts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, takewhile

import pytest

from headway.policies.burst.dual_signal import DualSignal, DualSignalParams
from headway.workload.arrivals import gaps
from tests.fakes.tokenscale import burst_ratio

Arrivals = list[tuple[float, int]]
LOG_NORMAL, EQUAL = 0.9, 0.0
SECONDS, STEP = 1800.0, 0.05
MOST = 20_000


def sized(instants: Iterable[float], sigma: float, rng: random.Random, num: int) -> Arrivals:
    drawn = zip(range(num), instants, strict=False)
    return [(at, min(8192, max(8, round(rng.lognormvariate(6.68, sigma))))) for _, at in drawn]


def steady(rate: float, sigma: float, seed: int) -> Arrivals:
    rng = random.Random(seed)
    num = min(MOST, max(600, round(rate * SECONDS)))
    return sized(accumulate(gaps("poisson", rate, rng)), sigma, rng, num)


@dataclass(frozen=True)
class OnOff:
    """Bursts of ``factor`` times the rate, of ``length`` seconds, for a ``share`` of the time."""

    rate: float
    factor: float
    length: float
    share: float

    def intensity(self, seed: int) -> list[float]:
        """Return requests/s in each step of ``STEP`` seconds."""
        rng = random.Random(seed)
        base = self.rate / (1 - self.share + self.share * self.factor)
        quiet_length = self.length * (1 - self.share) / self.share
        steps: list[float] = []
        while len(steps) < SECONDS / STEP:
            for height, length in ((base, quiet_length), (self.factor * base, self.length)):
                steps += [height] * round(rng.expovariate(1 / length) / STEP)
        return steps

    def arrivals(self, seed: int) -> Arrivals:
        """Return the requests of that intensity."""
        rng, steps = random.Random(seed), self.intensity(seed)
        most = max(steps)
        thinned = (
            at
            for at in takewhile(
                lambda at: at < STEP * len(steps), accumulate(gaps("poisson", most, rng))
            )
            if rng.random() * most < steps[int(at / STEP)]
        )
        return sized(thinned, LOG_NORMAL, rng, MOST)

    def truth(self, seed: int, factor: float) -> float:
        """Return the share beyond ``factor`` × the mean of a minute, were arrivals even."""
        steps, width = self.intensity(seed), round(60 / STEP)
        sums = list(accumulate(steps, initial=0.0))
        means = ((sums[n] - sums[n - width]) / width for n in range(width, len(steps)))
        excess = sum(
            max(0.0, now - factor * m) for now, m in zip(steps[width:], means, strict=True)
        )
        return excess / sum(steps[width:])


def ratio_of_gateways(arrivals: Arrivals, num_gateways: int, params: DualSignalParams) -> float:
    """Each gateway sees its own requests, and all of their labels make the ratio."""
    rng = random.Random(0)
    gateways = [DualSignal(params) for _ in range(num_gateways)]
    labelled = sum(
        tokens for at, tokens in arrivals if rng.choice(gateways).arrived(tokens, now=at).is_burst
    )
    return labelled / sum(tokens for _, tokens in arrivals)


@pytest.mark.parametrize("num_gateways", [1, 3])
@pytest.mark.parametrize("sigma", [EQUAL, LOG_NORMAL])
@pytest.mark.parametrize("rate", [0.2, 1.0, 3.0, 10.0, 30.0])
def test_steady_traffic_has_next_to_no_bursts(rate: float, sigma: float, num_gateways: int) -> None:
    for seed in (1, 2):
        found = ratio_of_gateways(steady(rate, sigma, seed), num_gateways, DualSignalParams())
        assert found <= 0.04


@pytest.mark.parametrize("sigma", [EQUAL, LOG_NORMAL])
@pytest.mark.parametrize("rate", [0.2, 1.0, 10.0, 30.0])
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_nor_has_it_at_other_factors(factor: float, rate: float, sigma: float) -> None:
    params = DualSignalParams(factor=factor, chance=0.03)
    assert burst_ratio(steady(rate, sigma, 3), params) <= 0.08


BURSTS = [
    OnOff(22.0, 3.0, 2.3, 0.47),  # as Azure's, by the paper
    OnOff(22.0, 3.0, 10.0, 0.25),
    OnOff(22.0, 10.0, 2.3, 0.05),
    OnOff(5.0, 10.0, 10.0, 0.1),
    OnOff(1.0, 10.0, 10.0, 0.1),
]


@pytest.mark.parametrize(("num_gateways", "within"), [(1, 0.07), (3, 0.1)])
@pytest.mark.parametrize("bursts", BURSTS, ids=str)
def test_the_ratio_of_real_bursts_is_near_what_comes_above_the_mean(
    bursts: OnOff, num_gateways: int, within: float
) -> None:
    params = DualSignalParams()
    found = ratio_of_gateways(bursts.arrivals(4), num_gateways, params)
    assert found == pytest.approx(bursts.truth(4, params.factor), abs=within)


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
def test_so_it_is_at_other_factors(factor: float) -> None:
    params = DualSignalParams(factor=factor, chance=0.03)
    found = burst_ratio(BURSTS[0].arrivals(4), params)
    assert found == pytest.approx(BURSTS[0].truth(4, factor), abs=0.1)
