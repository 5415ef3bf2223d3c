"""``headway key``: makes an API key, and the line of the key file that lets it in."""

from __future__ import annotations

import argparse

from headway.errors import HeadwayError
from services.gateway.auth import key_line, new_key


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.add_argument("name", help="whose key it is: letters, digits, dots, dashes, underscores")
    parser.add_argument(
        "--operator", action="store_true", help="it may also see metrics and other keys' requests"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the key (shown once) and its line for ``--api-key-file``."""
    key = new_key()
    try:
        line = key_line(args.name, key, operator=args.operator)
    except HeadwayError as error:
        print(error.message)
        return 2
    print(f"key (shown once, keep it secret): {key}")
    print(f"line for the gateway's --api-key-file: {line}")
    return 0
