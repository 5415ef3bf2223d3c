"""``headway key``: makes an API key, and the line of the key file that lets it in."""

from __future__ import annotations

import argparse

from headway.errors import HeadwayError
from services.gateway.auth import KEY_OPTIONS, key_line, new_key

_HELP = {
    "tenant": "who it belongs to; default: its name",
    "share": "the tenant's share of tokens, relative to others'; default: 1",
    "class": "the service class of requests that ask for none",
    "classes": "the classes that requests may ask for besides, a,b; default: any",
    "requests": "most outputs at once; default: any number",
    "waiting": "most outputs without a first token; default: any number",
    "tokens-per-minute": "most tokens a minute; default: any number",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.add_argument("name", help="whose key it is: letters, digits, dots, dashes, underscores")
    parser.add_argument(
        "--operator", action="store_true", help="it may also see metrics and other keys' requests"
    )
    for option in KEY_OPTIONS:
        parser.add_argument(f"--{option}", dest=f"key_{option}", help=_HELP[option])
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the key (shown once) and its line for ``--api-key-file``."""
    key = new_key()
    try:
        given = {option: getattr(args, f"key_{option}") for option in KEY_OPTIONS}
        options = {option: value for option, value in given.items() if value is not None}
        line = key_line(args.name, key, operator=args.operator, options=options)
    except HeadwayError as error:
        print(error.message)
        return 2
    print(f"key (shown once, keep it secret): {key}")
    print(f"line for the gateway's --api-key-file: {line}")
    return 0
