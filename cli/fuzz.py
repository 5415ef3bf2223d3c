"""``headway fuzz``: inputs from a seed for the gateway, the wire, the cores and the store."""

from __future__ import annotations

import argparse
from pathlib import Path

_KINDS = ("http", "schema", "wire", "cores", "store")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.epilog = "A finding is made small and saved. Exit status 1 where something was found."
    add = parser.add_argument
    add(
        "kind",
        choices=_KINDS,
        help="http: over sockets; schema: by /openapi.json; wire: messages; cores: their order",
    )
    add("--inputs", type=int, default=10_000, metavar="N", help="how many (10000)")
    add("--seed", type=int, default=1, metavar="N", help="of all inputs (1)")
    add("--try", dest="file", type=Path, metavar="FILE", help="try one saved input alone")
    add("--folder", type=Path, default=Path("run/fuzz"), help="of saved findings (run/fuzz)")
    add("--json", type=Path, metavar="FILE", help="write the report")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the campaign and print its report; return 1 where something was found."""
    import importlib

    from headway.errors import require_between
    from proof.fuzz.campaign import run as campaign

    require_between("--inputs", args.inputs, 1, 10**9)
    module = importlib.import_module(f"proof.fuzz.{args.kind}")
    target = getattr(module, f"{args.kind.capitalize()}Target")()
    try:
        if args.file is not None:
            problem = target.attempt(args.file.read_bytes()) or target.check()
            print(problem or "nothing is wrong")
            return 1 if problem else 0
        report = campaign(
            args.kind,
            target,
            num_inputs=args.inputs,
            seed=args.seed,
            folder=args.folder,
            say=lambda line: print(line, flush=True),
        )
    finally:
        target.close()
    print("\n".join(report.lines()))
    if args.json is not None:
        report.write(args.json)
    return 0 if report.holds else 1
