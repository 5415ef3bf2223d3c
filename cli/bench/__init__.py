"""``headway bench``: what a user feels, and what the gateway costs."""

from __future__ import annotations

import argparse
import importlib


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand and its own."""
    parser = subparsers.add_parser(
        "bench", help="measure servers, the gateway, the engine, the simulator, decisions"
    )
    kinds = parser.add_subparsers(dest="bench", required=True, metavar="KIND")
    for name in ("serve", "gateway", "engine", "sim", "policies", "takeover", "predictor", "burst"):
        importlib.import_module(f"cli.bench.{name}").add_parser(kinds)
