"""The results of ``headway bench burst``: figures, a table, JSON, and lines to draw."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from rich.console import Console

from bench.cluster.burst_plan import BurstLoad
from bench.serve.replay import ReplayedRequest
from headway.metrics import percentile
from results.output import titled_table, write_json

Figures = dict[str, float]
_SETTLED = 3.0  # seconds after the burst that its last requests may take to their first token
_NOT_CONFIG = ("run", "command", "bench", "json", "plots")


@dataclass(frozen=True, slots=True)
class Series:
    """Lines over time, s: the median TTFT (s) of each second's arrivals, and workers."""

    ttft: Sequence[tuple[float, float]]
    workers: Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class BurstRun:
    """A policy's run: every request, workers by role and state over time (s), and decisions."""

    outcomes: Sequence[ReplayedRequest]
    workers: Sequence[tuple[float, Mapping[str, int]]]
    num_resubmitted: int
    decisions: Sequence[tuple[float, str]]

    def series(self) -> Series:
        """Return the series to draw."""
        by_second: dict[int, list[float]] = {}
        for outcome in self.outcomes:
            if outcome.times is not None:
                at = int(outcome.planned.arrival_at)
                by_second.setdefault(at, []).append(outcome.times.ttft)
        ttft = [(at + 0.5, median(values)) for at, values in sorted(by_second.items())]
        return Series(ttft, [(at, sum(counts.values())) for at, counts in self.workers])

    def figures(self, load: BurstLoad, ttft_slo: float) -> Figures:
        """Return the table's figures, by the words that head them."""
        all_ttfts = _ttfts(self.outcomes, 0.0, load.seconds)
        in_burst = _ttfts(self.outcomes, load.before, load.burst_ends_at + _SETTLED)
        gaps = sorted(gap for outcome in self.outcomes for gap in outcome.gaps)
        sizes = [sum(counts.values()) for _, counts in self.workers]
        return {
            "TTFT P50, s": percentile(all_ttfts, 0.5) if all_ttfts else 0.0,
            "TTFT P99, s": percentile(all_ttfts, 0.99) if all_ttfts else 0.0,
            "TTFT P50 in the burst, s": percentile(in_burst, 0.5) if in_burst else 0.0,
            "TTFT P99 in the burst, s": percentile(in_burst, 0.99) if in_burst else 0.0,
            "TTFT at its peak (a second's median), s": max(
                (value for _, value in self.series().ttft), default=0.0
            ),
            f"TTFT of {ttft_slo:g} s or less, %": 100.0 * self._attainment(ttft_slo),
            "time between tokens P99, s": percentile(gaps, 0.99) if gaps else 0.0,
            "workers, most": float(max(sizes, default=0)),
            "workers, mean": fmean(sizes) if sizes else 0.0,
            "workers ordered": float(_steps(sizes, up=True)),
            "workers gone": float(_steps(sizes, up=False)),
            "first one ready after, s": self._first_ready(load),
            "requests": float(len(self.outcomes)),
            "failed": float(sum(bool(outcome.error_kind) for outcome in self.outcomes)),
            "submitted again": float(self.num_resubmitted),
        }

    def _first_ready(self, load: BurstLoad) -> float:
        """Return seconds from the burst's begin until more workers serve; 0 where none came."""
        serving = [
            (at, sum(n for state, n in counts.items() if state not in ("starting", "draining")))
            for at, counts in self.workers
        ]
        num_before = max((number for at, number in serving if at <= load.before), default=0)
        later = [at for at, number in serving if at > load.before and number > num_before]
        return later[0] - load.before if later else 0.0

    def _attainment(self, ttft_slo: float) -> float:
        """Return the share of all requests, those that failed included."""
        times = [outcome.times for outcome in self.outcomes]
        kept = sum(each is not None and each.ttft <= ttft_slo for each in times)
        return kept / len(times) if times else 0.0


def _ttfts(outcomes: Iterable[ReplayedRequest], begin: float, end: float) -> list[float]:
    """Return the TTFTs of those that arrived meanwhile, in order."""
    return sorted(
        outcome.times.ttft
        for outcome in outcomes
        if outcome.times is not None and begin <= outcome.planned.arrival_at <= end
    )


def _steps(sizes: Sequence[int], *, up: bool) -> int:
    """Count how many came, or went."""
    steps = [after - before for before, after in pairwise(sizes)]
    return sum(max(step, 0) if up else max(-step, 0) for step in steps)


def print_runs(
    console: Console, load: BurstLoad, runs: Mapping[str, BurstRun], ttft_slo: float
) -> None:
    """Print a column a policy."""
    title = (
        f"{load.rate:g} → {load.burst_rate:g} requests/s for {load.burst:g} s, "
        f"{load.prompt_tokens} + {load.output_tokens} tokens each"
    )
    columns = {name: run.figures(load, ttft_slo) for name, run in runs.items()}
    rows = [
        (row, *(f"{figures[row]:.3g}" for figures in columns.values()))
        for row in next(iter(columns.values()), {})
    ]
    table = titled_table(title, ("", *columns), rows)
    console.print(table)


def write_runs(path: Path, args: Namespace, load: BurstLoad, runs: Mapping[str, BurstRun]) -> None:
    """Configuration, figures, lines, decisions and every request of every policy."""
    config = {k: v for k, v in vars(args).items() if k not in _NOT_CONFIG}
    written = {
        "config": config,
        "load": asdict(load),
        "runs": {name: _written(run, load, args.ttft_slo) for name, run in runs.items()},
    }
    write_json(path, written, indent=1)


def _written(run: BurstRun, load: BurstLoad, ttft_slo: float) -> dict[str, object]:
    return {
        "figures": run.figures(load, ttft_slo),
        "ttft_by_second": run.series().ttft,
        "workers": run.workers,
        "decisions": run.decisions,
        "requests": [
            {
                "arrival_at": outcome.planned.arrival_at,
                "ttft": None if outcome.times is None else outcome.times.ttft,
                "ended_at": outcome.ended_at,
                "error": outcome.error,
            }
            for outcome in run.outcomes
        ],
    }
