"""``headway bench gateway``: the gateway's own cost, beside its peers."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("gateway", help="the gateway's own cost, beside its peers")
    parser.set_defaults(run=lambda args: 0)
