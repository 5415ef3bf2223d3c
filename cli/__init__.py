"""The ``headway`` command: one file per subcommand, heavy imports inside it."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from headway.errors import HeadwayError

_SUBCOMMANDS = (
    "up",
    "key",
    "policies",
    "profile",
    "bench",
    "simulate",
    "calibrate",
    "explain",
    "demo",
    "reproduce",
    "predictor",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; its exit status. 1 for a refusal, 2 for a wrong call."""
    parser = argparse.ArgumentParser(
        prog="headway",
        description="Serves large language models: the slowest is fast.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _SUBCOMMANDS:
        importlib.import_module(f"cli.{name}").add_parser(subparsers)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except HeadwayError as error:
        print(f"headway: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
