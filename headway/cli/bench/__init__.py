"""``headway bench``: what a user feels, and what the gateway costs."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand and its own."""
    from headway.cli.bench import gateway, serve

    parser = subparsers.add_parser("bench", help="measure a server, or the gateway's own cost")
    kinds = parser.add_subparsers(dest="bench", required=True, metavar="KIND")
    serve.add_parser(kinds)
    gateway.add_parser(kinds)
