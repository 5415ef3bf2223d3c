"""The ``headway`` command: one file per subcommand, heavy imports inside it."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import NoReturn

from headway.errors import Code, HeadwayError

_SUBCOMMANDS = (
    "up",
    "service",
    "key",
    "policies",
    "profile",
    "bench",
    "simulate",
    "calibrate",
    "explain",
    "demo",
    "reproduce",
    "chaos",
    "predictor",
)
_WRONG_CALLS = (Code.INVALID_ARGUMENT, Code.NOT_FOUND)


class _Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence; its subparsers do, too."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the options are listed; exit with 2."""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists what there is\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit status: 2 for a wrong call, 1 for any other failure."""
    parser = _Parser(
        prog="headway",
        description="Serves large language models so that the slowest request is still fast.",
    )
    version = importlib.metadata.version("headway")
    parser.add_argument("--version", action="version", version=f"headway {version}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _SUBCOMMANDS:
        importlib.import_module(f"cli.{name}").add_parser(subparsers)
    args, unknown = parser.parse_known_args(argv)
    if unknown and not hasattr(args, "service_flags"):
        subparsers.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    args.service_flags = unknown
    try:
        return int(args.run(args))
    except HeadwayError as error:
        print(f"headway: {error.message}", file=sys.stderr)
        return 2 if error.code in _WRONG_CALLS else 1
    except KeyboardInterrupt:
        return 130
