"""The compared figures, and by how much the simulation misses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.metrics import percentile

PUBLISHED = (
    ("E2E median", 0.067),
    ("E2E P99", 0.092),
    ("TTFT mean", 0.176),
    ("TTFT P99", 0.29),
    ("TPOT mean", 0.07),
)
"""The errors that published simulators report: what ours should stay below."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as its client saw it, seconds; ``tpot`` None for a single token."""

    ttft: float
    tpot: float | None
    ttlt: float


@dataclass(frozen=True, slots=True)
class CalibratedFigure:
    """A figure of both runs, seconds; ``error`` is the share by which the simulation misses."""

    name: str
    live: float
    simulated: float
    error: float
    published: float


def compare(live: Sequence[Seen], simulation: Sequence[Seen]) -> list[CalibratedFigure]:
    """Compare all figures; both runs must have requests that ended."""
    theirs, ours = _figures(live), _figures(simulation)
    return [
        CalibratedFigure(
            name, theirs[name], ours[name], abs(ours[name] - theirs[name]) / theirs[name], limit
        )
        for name, limit in PUBLISHED
    ]


def _figures(seen: Sequence[Seen]) -> dict[str, float]:
    ttfts, ttlts = sorted(s.ttft for s in seen), sorted(s.ttlt for s in seen)
    tpots = [s.tpot for s in seen if s.tpot is not None]
    return {
        "E2E median": percentile(ttlts, 0.5),
        "E2E P99": percentile(ttlts, 0.99),
        "TTFT mean": sum(ttfts) / len(ttfts),
        "TTFT P99": percentile(ttfts, 0.99),
        "TPOT mean": sum(tpots) / len(tpots),
    }
