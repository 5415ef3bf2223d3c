"""``headway bench burst``: a burst of requests over a cluster that scales, policy by policy."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cluster.burst_plan import CONTENDERS
from cli.options import add_model


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "burst",
        help="a burst over `headway up --autoscale`, one scaling policy after the other",
        description="Starts a cluster on this machine under each policy, offers the same requests "
        "at the same instants (few, then many, then few again), and records TTFT and workers over "
        "time. Routing is TokenScale's for all; thresholds come from the one profile "
        "(`headway profile run`), so that every policy knows the same of the machine.",
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
    add("--json", type=Path, metavar="FILE", help="write configuration, figures and every request")
    add("--plots", type=Path, metavar="DIR", help="draw TTFT and workers over time (PNG, SVG)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 where a request failed."""
    import asyncio

    from bench.cluster.burst_run import compare
    from bench.extras import require_extra
    from headway.cost.profile import load_profile
    from headway.errors import invalid, require_between, require_over

    names = [name for name in args.policies.split(",") if name]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown or not names:
        raise invalid("--policies", args.policies, f"some of {', '.join(CONTENDERS)}, by comma")
    for name in ("rate", "burst_rate", "burst", "ttft_slo"):
        require_over(f"--{name.replace('_', '-')}", getattr(args, name), 0)
    for name in ("before", "after"):
        require_between(f"--{name}", getattr(args, name), 0, 3600)
    require_between("--prompt-tokens", args.prompt_tokens, 0, 1_000_000)
    require_between("--output-tokens", args.output_tokens, 0, 1_000_000)
    require_between("--kv-tokens", args.kv_tokens, 2048, 1 << 40)
    require_between("--utilisation", args.utilisation, 0.05, 1)
    require_between("--max-prefill", args.max_prefill, 1, 64)
    require_between("--max-decode", args.max_decode, 1, 64)
    if args.plots is not None:
        require_extra("matplotlib", "--plots")
    return asyncio.run(compare(args, names, load_profile(args.profile)))
