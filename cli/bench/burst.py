"""``headway bench burst``: a burst of requests over a cluster that scales, policy by policy."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.burst.plan import CONTENDERS
from bench.burst.run import SEED, BurstComparison
from bench.runner.comparison import compare
from cli.options import add_json, add_model, require_ranges
from headway.cost.profile import load_profile
from headway.errors import invalid


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts a cluster on this machine under each policy, offers the same requests "
        "at the same instants (few, then many, then few again), and records TTFT and workers over "
        "time. Routing is TokenScale's for all; thresholds come from the one profile "
        "(`headway profile run`), so that every policy knows the same of the machine."
    )
    add = parser.add_argument
    names = ",".join(CONTENDERS)
    add("--profile", required=True, metavar="FILE", help="what `headway profile run` has written")
    add("--policies", default=names, help=f"by comma ({names})")
    add_model(parser)
    add("--device", default="cpu", help="cpu or cuda")
    add("--max-prefill", type=int, default=2, metavar="N", help="most prefill workers (2)")
    add("--max-decode", type=int, default=3, metavar="N", help="most decoders, convertible too (3)")
    add("--kv-tokens", type=int, default=65_536, metavar="N", help="a worker's KV memory (65536)")
    add("--standby", type=int, default=0, metavar="N", help="warm workers without a role (0)")
    add("--scale-down-delay", type=float, default=8.0, metavar="S", help="s of quiet before (8)")
    add("--log-dir", default="run/burst", help="folder of the services' logs (default run/burst)")
    add_json(parser, "write configuration, figures and every request")
    add("--plots", type=Path, metavar="DIR", help="draw TTFT and workers over time (PNG, SVG)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 where a request failed."""
    names = [name for name in args.policies.split(",") if name]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown or not names:
        raise invalid("--policies", args.policies, f"some of {', '.join(CONTENDERS)}, by comma")
    require_ranges(args, kv_tokens=(2048, 1 << 40), max_prefill=(1, 64), max_decode=(1, 64))
    comparison = BurstComparison(args, names, load_profile(args.profile))
    runs = asyncio.run(compare(comparison, [SEED], args.json))
    if args.plots is not None:
        comparison.plot(args.plots, {name: of[SEED] for name, of in runs.in_pairs("").items()})
    return runs.status
