"""The whole demo: pairs over the seeds, tables, verdicts and the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench.demo.live import Pair, Setting, run_pair
from bench.demo.paired import paired
from bench.demo.table import print_compared, print_rule, values_of
from bench.demo.verdict import ComparedFigure, compared
from results import plots
from results.output import make_console, write_json
from services.local.options import PolicyOptions

_Contender = TypeVar("_Contender")
_WIDTH = 140
_DRIFT = 0.25  # a share: beyond it the machine changed within a pair


async def compare(
    setting: Setting,
    policies: Sequence[PolicyOptions],
    seeds: Sequence[int],
    json: Path | None,
    plots_in: Path | None,
) -> int:
    """Run all pairs, every second one in reverse; return 1 where a request failed."""
    console = make_console(_WIDTH)
    num_runs = len(policies) * len(seeds)
    console.print(
        f"{setting.num_clusters * num_runs} clusters, one after the other, all but {num_runs} of "
        "them to measure what they carry: "
        f"about {num_runs * setting.usual_seconds / 60:.0f} minutes, and never over "
        f"{num_runs * setting.most_seconds / 60:.0f}"
    )
    pairs: list[Pair] = []
    presets = [each.preset for each in policies]
    num_failed = 0
    try:
        for place, seed in enumerate(seeds):
            pair, num_of_it = await run_pair(setting, order_of(policies, place), seed, console)
            pairs.append(pair)
            num_failed += num_of_it
            if pair.drift > _DRIFT:
                said = f"seed {seed}: one cluster carried {pair.drift:.0%} more than another"
                console.print(f"{said}; the machine may have changed meanwhile")
            write_json(json, report(pairs, presets))
    finally:  # what is known stays known if a later pair is refused or stopped
        if pairs:
            _print(console, pairs, presets)
    if plots_in is not None:
        _plot(plots_in, pairs)
    return 1 if num_failed else 0


def order_of(contenders: Sequence[_Contender], place: int) -> Sequence[_Contender]:
    """Return the order of a pair: every second one is reversed, so that drift cancels out."""
    return list(reversed(contenders)) if place % 2 else contenders


def report(pairs: Sequence[Pair], presets: Sequence[str]) -> dict[str, Any]:
    """Return everything for JSON: the pairs, and a verdict for each figure."""
    verdicts = {
        regime: {
            name: [row.packed() for row in _rows(pairs, regime, presets[0], name)]
            for name in presets[1:]
        }
        for regime in pairs[0].runs
    }
    return {"pairs": [pair.packed() for pair in pairs], "verdicts": verdicts}


def _rows(pairs: Sequence[Pair], regime: str, first: str, other: str) -> list[ComparedFigure]:
    runs = [pair.runs[regime] for pair in pairs]
    samples = [
        paired(run[first].requests, run[other].requests, pair.alone)
        for pair, run in zip(pairs, runs, strict=True)
    ]
    before, after = ([run[name].figures for run in runs] for name in (first, other))
    return compared(before, after, samples=samples)


def _print(console: Console, pairs: Sequence[Pair], presets: Sequence[str]) -> None:
    for regime in pairs[0].runs:
        num_requests = sum(pair.offers[regime].num_requests for pair in pairs)
        title = f"{regime}: {num_requests} requests a preset in {len(pairs)} pairs"
        for name in presets[1:]:
            rows = _rows(pairs, regime, presets[0], name)
            print_compared(console, title, (presets[0], name), rows)
    print_rule(console)


def _plot(folder: Path, pairs: Sequence[Pair]) -> None:
    """Draw the latencies of all pairs together, a folder a regime."""
    for regime in pairs[0].runs:
        runs = {
            name: values_of([one for pair in pairs for one in pair.runs[regime][name].requests])
            for name in pairs[0].runs[regime]
        }
        plots.latency_cdfs(folder / regime, runs)
