"""``headway policies``: every policy by its question and name."""

from __future__ import annotations

import argparse
import inspect


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("policies", help="list the policies that flags can name")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line a policy: its question, its name, what its docstring says first."""
    from headway.policies.registry import REGISTRY

    for question, answers in sorted(REGISTRY.items()):
        for name, factory in sorted(answers.items()):
            first = (inspect.getdoc(factory) or "").partition("\n")[0]
            print(f"{question:<12} {name:<14} {first}")
    return 0
