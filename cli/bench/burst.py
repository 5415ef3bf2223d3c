"""``headway bench burst``: a burst of requests over a cluster that scales, policy by policy."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.burst.plan import CONTENDERS
from bench.burst.run import BurstComparison
from bench.runner.comparison import compare
from cli.options import add_json, add_model, require_ranges
from headway.cost.profile import load_profile
from headway.errors import invalid, require_over


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts a cluster on this machine under each policy, offers the same requests "
        "at the same instants (few, then many, then few again), and records TTFT and workers over "
        "time. Routing is TokenScale's for all; thresholds come from the one profile "
        "(`headway profile run`), so that every policy knows the same of the machine."
    )
    _add_cluster(parser)
    _add_load(parser)
    _add_report(parser)
    parser.set_defaults(run=run)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
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
    add("--utilisation", type=float, default=0.7, metavar="U", help="planned, of all (0.7)")
    add("--log-dir", default="run/burst", help="folder of the services' logs (default run/burst)")


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rate", type=float, default=1.0, metavar="R", help="requests/s before and after (1)")
    add("--burst-rate", type=float, default=10.0, metavar="R", help="requests/s in the burst (10)")
    add("--before", type=float, default=10.0, metavar="S", help="seconds before it (10)")
    add("--burst", type=float, default=20.0, metavar="S", help="seconds that it lasts (20)")
    add("--after", type=float, default=40.0, metavar="S", help="seconds after it (40)")
    filling = "default: so many that the burst is a little more than one carries"
    add("--prompt-tokens", type=int, default=0, metavar="N", help=f"of a request; {filling}")
    add(
        "--output-tokens", type=int, default=0, metavar="N", help="of its answer; default: the same"
    )
    add("--seed", type=int, default=0, help="of arrivals and prompts (0)")


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ttft-slo", type=float, default=0.25, metavar="S", help="that attainment is of (0.25)")
    add_json(parser, "write configuration, figures and every request")
    add("--plots", type=Path, metavar="DIR", help="draw TTFT and workers over time (PNG, SVG)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 where a request failed."""
    names = [name for name in args.policies.split(",") if name]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown or not names:
        raise invalid("--policies", args.policies, f"some of {', '.join(CONTENDERS)}, by comma")
    for name in ("rate", "burst_rate", "burst", "ttft_slo"):
        require_over(f"--{name.replace('_', '-')}", getattr(args, name), 0)
    require_ranges(args, before=(0, 3600), after=(0, 3600), kv_tokens=(2048, 1 << 40))
    require_ranges(args, prompt_tokens=(0, 1_000_000), output_tokens=(0, 1_000_000))
    require_ranges(args, utilisation=(0.05, 1), max_prefill=(1, 64), max_decode=(1, 64))
    comparison = BurstComparison(args, names, load_profile(args.profile))
    runs = asyncio.run(compare(comparison, [args.seed], args.json))
    if args.plots is not None:
        comparison.plot(args.plots, {name: of[args.seed] for name, of in runs.in_pairs("").items()})
    return runs.status
