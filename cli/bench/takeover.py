"""``headway bench takeover``: how long until a standby leads and serves, and what is lost."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from statistics import median

from bench.cluster.takeover_run import measure
from cli.options import add_json, add_model, require_ranges
from results.output import write_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts a cluster with a standby, keeps streams running, and kills the leader (SIGKILL) "
        "so many times."
    )
    add = parser.add_argument
    add_model(parser)
    add("--kills", type=int, default=5, metavar="N", help="of the leader (5)")
    add("--streams", type=int, default=8, metavar="N", help="requests in flight all the time (8)")
    add("--tokens", type=int, default=300, metavar="N", help="of each answer (300)")
    add_json(parser, "write every kill's figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 where an answer was lost, cut or changed."""
    require_ranges(args, kills=(1, 1000), streams=(1, 1024), tokens=(8, 1024))
    report = asyncio.run(measure(args.model, args.kills, args.streams, args.tokens))
    for name, text in (
        ("elected", "a standby leads"),
        ("served", "the first token of a request that was sent at the kill"),
    ):
        seconds = [getattr(kill, name) for kill in report.kills]
        print(
            f"{text}: median {median(seconds):.2f} s, longest {max(seconds):.2f} s after the kill"
        )
    print(
        f"{len(report.kills)} kills under {args.streams} streams: {report.num_whole} answers "
        f"whole, {report.num_wrong} lost, cut or changed, {report.num_resubmitted} computed again"
    )
    write_json(args.json, asdict(report))
    return 1 if report.num_wrong else 0
