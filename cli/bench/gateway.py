"""``headway bench gateway``: the gateway's own cost, beside its peers."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

from bench.gateway.peers import find_peers
from bench.gateway.run import GatewayComparison
from bench.runner.comparison import compare
from cli.options import add_json, add_model
from headway.errors import invalid


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = "Ours stands before an emulated worker, its peers before a mock backend."
    add = parser.add_argument
    add_model(parser, "folder or hub id of the tokenizer")
    add("--peers", default="smg,vllm-router,litellm", help="which, by comma; empty: none")
    home = Path("~/.cache/headway/peers")
    add("--peers-dir", type=Path, default=home, help=f"their environments ({home})")
    add("--install-peers", action="store_true", help="install those that are missing first")
    add("--records", action="store_true", help="ours with its access log, and without records, too")
    add("--rounds", type=int, default=3, metavar="N", help="each in turn, so often (3)")
    add("--seconds", type=float, default=3.0, metavar="S", help="of each measurement (3)")
    add("--streams", type=int, default=64, metavar="N", help="requests in flight at most (64)")
    add("--tokens", type=int, default=128, metavar="N", help="of a streamed answer (128)")
    add("--delay-ms", type=float, default=5.0, help="between passes of the workers (5)")
    add_json(parser, "write every round's figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; HeadwayError where ours cannot be measured."""
    most = {"rounds": 100, "seconds": 600.0, "streams": 1024, "tokens": 1024}
    for name, limit in most.items():
        if not 0 < getattr(args, name) <= limit:
            raise invalid(f"--{name}", getattr(args, name), f"over 0 and at most {limit}")
    return uvloop.run(_compare(args))


async def _compare(args: argparse.Namespace) -> int:
    console, folder = Console(), args.peers_dir.expanduser()
    peers, missing = find_peers(args.peers, folder, installs=args.install_peers, say=console.print)
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as logs:
        comparison = GatewayComparison(args, peers, Path(logs))
        comparison.left_out.update(missing)
        await compare(comparison, range(1, args.rounds + 1), args.json)
    for line in (
        "none: the mock backend itself; changes from it are what a gateway adds. µs: CPU of the "
        "gateway's processes.",
        "headway tokenises, schedules and makes text of tokens; the others pass on bytes.",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0
