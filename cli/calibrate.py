"""``headway calibrate``: how well the simulator predicts this machine."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from bench.calibrate.figures import CalibratedFigure, Seen, compare
from bench.calibrate.live import ask, one_by_one, poisson
from bench.calibrate.model import (
    WorkerRecord,
    find_latency,
    fit_profile,
    read_records,
    simulation,
)
from bench.output import make_table, write_json
from cli.options import add_json, add_model, require_ranges
from headway.cost.fit import judge
from headway.cost.profile import Profile, load_profile, save_profile
from headway.errors import require_over
from headway.workload.traces import TraceRow
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.refusals import refuse_wrong_options
from services.local.store import free_port


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts a local cluster, fits a profile to the passes of one load, then "
        "predicts another load with it and measures that one. Nothing of the second is fitted."
    )
    add = parser.add_argument
    add_model(parser)
    add("--preset", default="vllm-like", help="policies of both runs (vllm-like)")
    add("--prefill", type=int, default=0, metavar="N", help="prefill workers (0)")
    add("--decode", type=int, default=0, metavar="N", help="decode workers (0)")
    add("--unified", type=int, default=1, metavar="N", help="workers that do both (1)")
    add("--rate", type=float, default=4.0, metavar="R", help="requests/s (4)")
    add("--num-requests", type=int, default=150, metavar="N", help="of each load (150)")
    add("--seed", type=int, default=0, help="of arrivals and lengths (0)")
    add("--profile", default="", metavar="FILE", help="predict with it and fit none")
    add("--out", type=Path, metavar="FILE", help="write the fitted profile (TOML)")
    add_json(parser, "write the figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, fit, simulate, compare; HeadwayError for what cannot be run."""
    require_over("--rate", args.rate, 0)
    require_ranges(args, num_requests=(20, 100_000))
    lone = one_by_one(0.5, 20, args.seed)
    learning = poisson(args.rate, args.num_requests, args.seed)
    (alone, _), records = _live(args, lone, learning)
    profile, fit = _profile(args.profile, records)
    ttft = sorted(each.ttft for each in alone)[len(alone) // 2]
    latency = find_latency(records, profile, args.preset, lone, ttft)
    print(f"{fit}; {1e3 * latency:.2f} ms a message", flush=True)
    asked = poisson(args.rate, args.num_requests, args.seed + 1)
    (live,), _ = _live(args, asked)
    figures = compare(live, simulation(records, profile, args.preset, asked, latency))
    _print(figures)
    if args.out is not None:
        save_profile(profile, args.out)
    write_json(args.json, [asdict(figure) for figure in figures])
    return 0


def _profile(given: str, records: Sequence[WorkerRecord]) -> tuple[Profile, str]:
    """Return the given profile, or one fitted to the records; and how it meets their passes."""
    if given:
        profile = load_profile(given)
        found = judge(profile.pass_time, [each for record in records for each in record.passes])
        how = f"{profile.name} on {found.num_passes} passes"
    else:
        profile, found = fit_profile(records, "calibrated")
        how = f"fitted to {found.num_passes} passes"
    error = f"error median {found.median_error:.1%}, P95 {found.p95_error:.1%} of a pass"
    return profile, f"{how}: {error}"


def _live(
    args: argparse.Namespace, *loads: Sequence[TraceRow]
) -> tuple[list[list[Seen]], list[WorkerRecord]]:
    """Return what the clients of each load saw, and what the workers wrote down of all of them."""

    async def run_all(folder: Path) -> list[list[Seen]]:
        options = ClusterOptions(
            model=args.model,
            policies=PolicyOptions(args.preset),
            workers=WorkerCounts(args.prefill, args.decode, unified=args.unified),
            port=free_port(2),
            log_level="warning",
            drain_timeout=10.0,
            service_flags={"worker": ("--record-passes", str(folder / "passes"))},
        )
        name = options.served_name
        refuse_wrong_options(options, folder / "logs")
        async with LocalCluster(options, folder / "logs") as cluster:
            await ask(cluster.url, name, loads[0][:5], args.seed)  # what is slow once, is slow now
            return [await ask(cluster.url, name, rows, args.seed) for rows in loads]

    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(run_all(Path(folder)))
        return seen, read_records(Path(folder) / "passes")


def _print(figures: Sequence[CalibratedFigure]) -> None:
    rows = [
        (
            each.name,
            *(f"{1e3 * each.live:.2f}", f"{1e3 * each.simulated:.2f}"),
            *(f"{each.error:.1%}", f"{each.published:.1%}"),
        )
        for each in figures
    ]
    Console().print(make_table(("ms", "live", "simulated", "error", "published"), rows))
