"""``headway bench flood``: what one side's flood does to the others, simulated or live."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.floods import live, simulated
from bench.floods.offered import SIDES, Flood
from bench.runner.comparison import compare
from cli.options import add_json, add_model, parse_seeds, require_ranges
from headway.errors import invalid
from results.output import make_table, write_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Three sides alike; then one asks for many times what the cluster can. Sides are tenants, "
        "or the classes interactive and batch, or nobody in particular."
    )
    usual, cluster = Flood(), simulated.FloodedCluster()
    add = parser.add_argument
    add("--by", default=usual.by, choices=SIDES, help="what tells the sides apart (tenant)")
    add("--preset", default=cluster.preset, help="policies (headway)")
    add("--load", type=float, default=usual.usual, metavar="R", help="of prefill, quiet (0.6)")
    add("--flood", type=float, default=usual.flood, metavar="R", help="of prefill, flood (10)")
    add("--seconds", type=float, default=usual.seconds, metavar="S", help="of arrivals (10)")
    add("--seeds", default="101,102,103", metavar="N", help="how many, or which (101,102,103)")
    add("--profile", default="", help=f"of simulated instances ({cluster.profile})")
    add(
        "--live",
        action="store_true",
        help="ask a cluster on this machine, one prefiller, one "
        "decoder, instead of a simulated one",
    )
    add_model(parser)
    add_json(parser, "write the rows")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate or ask, and print; HeadwayError for a number out of range."""
    require_ranges(args, load=(0.01, 0.95), flood=(1.0, 100.0), seconds=(1.0, 3600.0))
    flood = Flood(args.by, args.load, args.flood, args.seconds)
    seeds = parse_seeds(args.seeds)
    if args.live:
        if args.profile:
            raise invalid(
                "--profile", args.profile, "left out with --live: no instance is simulated"
            )
        with tempfile.TemporaryDirectory(prefix="headway-flood-") as folder:
            comparison = live.LiveFlood(args.model, flood, Path(folder), args.preset)
            return asyncio.run(compare(comparison, seeds, args.json)).status
    cluster = simulated.FloodedCluster(args.preset)
    if args.profile:
        cluster = replace(cluster, profile=args.profile)
    rows = simulated.rows_of(cluster, flood, seeds=seeds)
    others = ("requests", "P50 TTFT s", "ratio", "P99 TTFT s", "ratio")
    titles = ("flood of prompts", *others, "flooder tokens/s")
    Console().print(make_table(titles, map(_cells, rows)))
    write_json(args.json, rows)
    return 0


def _cells(row: dict[str, float]) -> tuple[str, ...]:
    return (
        f"{row['flood_prompt']:.0f} tokens" if row["flood_prompt"] else "none",
        f"{row['num_requests']:.0f}",
        f"{row['p50_ttft']:.3f}",
        f"{row['p50_ratio']:.2f}",
        f"{row['p99_ttft']:.3f}",
        f"{row['p99_ratio']:.2f}",
        f"{row['flooder_tokens_per_s']:.0f}",
    )
