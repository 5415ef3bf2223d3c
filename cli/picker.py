"""``headway picker``: the endpoint picker, as ``headway service picker`` runs it."""

from __future__ import annotations

import argparse

from cli.service import become


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options: all are the service's own."""
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.epilog = "Its flags: headway service picker --help lists them."
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Become the service; it reads its flags and ends the process itself."""
    return become("picker", [*args.service_flags, *args.flags])
