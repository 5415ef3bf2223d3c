"""``headway up``: the whole cluster on this machine."""

from __future__ import annotations

import argparse

from services.local import up


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("up", help="start the whole cluster on this machine")
    up.add_options(parser)
    parser.set_defaults(run=up.run)
