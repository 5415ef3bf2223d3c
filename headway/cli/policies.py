"""``headway policies``: every policy by its question and name."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("policies", help="list the policies that flags can name")
    parser.add_argument("--parameters", action="store_true", help="with what each can be told")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line a policy: its question, its name, what it does, where it is from."""
    from headway.policies.registry import REGISTRY

    for question, answers in sorted(REGISTRY.items()):
        for name, answer in sorted(answers.items()):
            print(f"{question:<13} {name:<20} {answer.description} [{answer.reference}]")
            if args.parameters:
                for param, default in answer.parameters().items():
                    print(f"{'':<34} {param} = {default!r}")
    return 0
