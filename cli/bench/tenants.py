"""``headway bench tenants``: what one tenant's flood does to the others, simulated."""

from __future__ import annotations

import argparse

from rich.console import Console

from bench.output import make_table, write_json
from bench.tenants import TenantBench, rows_of
from cli.options import add_json, parse_seeds, require_ranges


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = "Three tenants alike; then one asks for many times what the cluster can."
    default = TenantBench()
    add = parser.add_argument
    add("--preset", default=default.preset, help="policies (headway)")
    add("--profile", default=default.profile, help="of all instances (llama-8b-a100)")
    add("--load", type=float, default=default.load, metavar="R", help="of prefill, quiet (0.6)")
    add("--flood", type=float, default=default.flood, metavar="R", help="of prefill, flood (10)")
    add("--seconds", type=float, default=default.seconds, metavar="S", help="of arrivals (10)")
    add("--seeds", default="101,102,103", metavar="N", help="how many, or which (101,102,103)")
    add_json(parser, "write the rows")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print; HeadwayError for a number out of range."""
    require_ranges(args, load=(0.01, 0.95), flood=(1.0, 100.0), seconds=(1.0, 3600.0))
    bench = TenantBench(
        args.preset,
        args.profile,
        load=args.load,
        flood=args.flood,
        seconds=args.seconds,
    )
    rows = rows_of(bench, seeds=parse_seeds(args.seeds))
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
