"""``headway service NAME``: one service alone, as ``python -m services.NAME`` runs it."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence

SERVICES = ("gateway", "scheduler", "worker", "predictor", "autoscaler", "picker")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.add_argument("name", choices=SERVICES, help="its flags follow: NAME --help lists them")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Become the service; it reads its flags and ends the process itself."""
    return become(args.name, args.flags)


def become(name: str, flags: Sequence[str]) -> int:
    """Run a service's module in this process with these flags."""
    sys.argv = [f"headway service {name}", *flags]
    runpy.run_module(f"services.{name}", run_name="__main__", alter_sys=True)
    return 0
