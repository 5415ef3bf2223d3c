"""``headway explain``: what was decided for a request, who else was considered, and why."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("explain", help="why a request of a recorded run went there")
    parser.add_argument("request", help="its id, as in the run's requests.jsonl")
    parser.add_argument(
        "--run",
        dest="folder",
        type=Path,
        required=True,
        metavar="DIR",
        help="one run of `headway simulate --out`",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every decision; HeadwayError where there is none."""
    from headway.core.explanations import told_of
    from headway.errors import Code, HeadwayError

    path = args.folder / "decisions.jsonl"
    if not path.is_file():
        message = f"{path} is not there: record a run with `headway simulate … --out DIR`"
        raise HeadwayError(Code.NOT_FOUND, message)
    with path.open(encoding="utf-8", errors="replace") as lines:
        told = [each.text() for each in told_of(args.request, lines)]
    if not told:
        message = f"{path} has no decision about {args.request!r}"
        raise HeadwayError(Code.NOT_FOUND, message)
    print("\n".join(told))
    return 0
