"""``headway bench predictor``: what a prediction costs, against the paper's figures."""

from __future__ import annotations

import argparse

from cli.options import require_ranges
from models.lengths.latency import BATCHES, PAPER_MS, PAPER_WIDTH, measure_latency
from services.predictor.network import NetworkShape, default_layers


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.add_argument("--repeats", type=int, default=200, help="batches timed (default 200)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print a Markdown table."""
    require_ranges(args, repeats=(1, 1_000_000))
    print("| d | parameters | batch | median ms | best ms | p99 ms | paper ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for width in (PAPER_WIDTH, 128):
        shape = NetworkShape(width, default_layers(width))
        for row in measure_latency(shape, BATCHES, args.repeats):
            paper = PAPER_MS.get(row.batch_size) if width == PAPER_WIDTH else None
            of_paper = f"{paper:g}" if paper is not None else ""
            print(
                f"| {row.width} | {row.num_parameters:,} | {row.batch_size} | "
                f"{row.median_ms:.3f} | {row.best_ms:.3f} | {row.p99_ms:.3f} | {of_paper} |"
            )
    return 0
