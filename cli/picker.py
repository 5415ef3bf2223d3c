"""``headway picker``: the endpoint picker, as ``headway service picker`` runs it."""

from __future__ import annotations

import argparse

from cli.service import become


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register none: what the command does not know are the service's flags."""
    parser.set_defaults(run=run, service_flags=[])


def run(args: argparse.Namespace) -> int:
    """Become the service; it reads its flags and ends the process itself."""
    return become("picker", args.service_flags)
