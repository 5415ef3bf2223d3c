"""``headway policies``: every policy by its question and name, or every preset by its policies."""

from __future__ import annotations

import argparse

from headway.policies.registry import REGISTRY
from headway.presets import PRESETS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.add_argument("--parameters", action="store_true", help="with what each can be told")
    parser.add_argument("--presets", action="store_true", help="the presets and their policies")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line a policy: its question, its name, what it does, where it is from."""
    if args.presets:
        _print_presets()
        return 0
    for question, answers in sorted(REGISTRY.items()):
        for name, answer in sorted(answers.items()):
            print(f"{question:<13} {name:<20} {answer.description} [{answer.reference}]")
            if args.parameters:
                for param, default in answer.parameters().items():
                    print(f"{'':<34} {param} = {default!r}")
    return 0


def _print_presets() -> None:
    for name, preset in PRESETS.items():
        print(f"{name:<11} {preset.description} [{preset.reference}]")
        for question in sorted(REGISTRY):
            params = ", ".join(f"{k}={v!r}" for k, v in preset.params_of(question).items())
            suffix = f" ({params})" if params else ""
            print(f"{'':<11} {question:<13} {getattr(preset, question)}{suffix}")
