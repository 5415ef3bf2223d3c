"""``headway key``: makes an API key, and the line of the key file that lets it in."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Register the subcommand with the ``headway`` command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "key", help="make an API key and the line that lets it in"
    )
    parser.add_argument("name", help="whose key it is: letters, digits, dots, dashes, underscores")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the key (shown once) and its line for ``--api-key-file``."""
    from headway.errors import HeadwayError
    from services.gateway.auth import key_line, new_key

    key = new_key()
    try:
        line = key_line(args.name, key)
    except HeadwayError as error:
        print(error.message)
        return 2
    print(f"key (shown once, keep it secret): {key}")
    print(f"line for the gateway's --api-key-file: {line}")
    return 0
