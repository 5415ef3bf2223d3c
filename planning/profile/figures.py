"""Figures of a load, live or simulated, and by how much one misses the other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.metrics import percentile

TARGETS: Mapping[str, float] = {
    "E2E median": 0.05,
    "E2E P99": 0.10,
    "TTFT mean": 0.12,
    "TTFT P99": 0.20,
    "TPOT mean": 0.04,
}
"""The figures that are compared, and the errors that a prediction should stay below."""
_NUM_DRAWS = 200
_SHARES = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as its client saw it, seconds; ``tpot`` None for a single token.

    ``ended_at``: after the start of the load.
    """

    ttft: float
    tpot: float | None
    ttlt: float
    ended_at: float = 0.0


Load = Sequence[Seen | None]
"""The requests of a load by arrival; None for one that failed."""


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """An SLO: a request keeps it within these seconds."""

    ttft: float
    tpot: float

    def attainment(self, load: Load) -> float:
        """Return the share of requests that keep it; one that failed does not."""
        kept = sum(
            seen is not None and seen.ttft <= self.ttft and (seen.tpot or 0.0) <= self.tpot
            for seen in load
        )
        return kept / max(1, len(load))


def figures(load: Load) -> dict[str, float]:
    """Return every figure of the requests that ended, seconds; empty where none did."""
    seen = [each for each in load if each is not None]
    ttfts, ttlts = sorted(s.ttft for s in seen), sorted(s.ttlt for s in seen)
    tpots = [s.tpot for s in seen if s.tpot is not None]
    if not (ttfts and tpots):
        return {}
    return {
        "E2E median": percentile(ttlts, 0.5),
        "E2E P99": percentile(ttlts, 0.99),
        "TTFT mean": sum(ttfts) / len(ttfts),
        "TTFT P99": percentile(ttfts, 0.99),
        "TPOT mean": sum(tpots) / len(tpots),
    }


def errors(truth: Load, predicted: Sequence[Load]) -> dict[str, float]:
    """Return by which share of the truth each figure misses it, signed.

    ``predicted``: the same requests, once or several times; figures are over all of them. A
    request that failed in truth counts nowhere.
    """
    return _missed(truth, predicted, range(len(truth)))


def intervals(truth: Load, predicted: Sequence[Load]) -> dict[str, tuple[float, float]]:
    """Return the 90 % interval of each error: requests are drawn anew, with replacement."""
    rng, size = random.Random(0), len(truth)
    draws = [_missed(truth, predicted, rng.choices(range(size), k=size)) for _ in range(_NUM_DRAWS)]
    bounds = {}
    for name in TARGETS:
        ordered = sorted(draw[name] for draw in draws if name in draw)
        if ordered:
            low, high = (percentile(ordered, share) for share in _SHARES)
            bounds[name] = low, high
    return bounds


def _missed(truth: Load, predicted: Sequence[Load], places: Sequence[int]) -> dict[str, float]:
    kept = [place for place in places if truth[place] is not None]
    theirs = figures([truth[place] for place in kept])
    ours = figures([load[place] for load in predicted for place in kept])
    return {name: ours[name] / theirs[name] - 1.0 for name in ours if theirs.get(name)}
