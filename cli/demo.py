"""``headway demo``: one burst of chats and reasoning, under two presets, side by side."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.demo.live import compare
from cli.options import add_json, add_model, add_policy_options, chosen, require_ranges
from headway.errors import invalid, require_over
from headway.presets import find_preset
from services.local.options import PolicyOptions


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts a cluster on this machine under each preset, one after the other, and "
        "sends each the same requests at the same instants. What warms it up is of the same kind: "
        "policies that learn (γ-Ada needs a hundred answers) have learned by then."
    )
    add = parser.add_argument
    add("--presets", default="vllm-like,headway", help="two or more by comma (vllm-like,headway)")
    add_model(parser)
    add("--prefill", type=int, default=1, metavar="N", help="prefill workers (default 1)")
    add("--decode", type=int, default=1, metavar="N", help="decode workers (default 1)")
    add("--device", default="cpu", help="cpu or cuda")
    add("--max-running", type=int, default=4, metavar="N", help="of a DP unit in one pass (4)")
    add("--num-requests", type=int, default=150, metavar="N", help="a third in the burst (150)")
    add("--warm-up", type=int, default=120, metavar="N", help="requests before it counts (120)")
    add("--rate", type=float, default=6.0, metavar="R", help="requests/s before and after it (6)")
    add("--seed", type=int, default=0, help="of arrivals and prompts (0)")
    add("--log-dir", default="run/demo", help="folder of the services' logs (default run/demo)")
    add("--plots", type=Path, metavar="DIR", help="draw the latencies' distributions")
    add_json(parser, "write the table")
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run and print; 1 where a request failed."""
    presets = [name for name in args.presets.split(",") if name]
    for name in presets:
        find_preset(name)
    if len(set(presets)) < 2:
        raise invalid("--presets", args.presets, "two different ones or more, by comma")
    require_ranges(args, num_requests=(6, 100_000), warm_up=(0, 100_000))
    require_ranges(args, max_running=(0, 1_000_000))
    require_over("--rate", args.rate, 0)
    policies = [PolicyOptions(name, *chosen(args)) for name in presets]
    return asyncio.run(compare(args, policies))
