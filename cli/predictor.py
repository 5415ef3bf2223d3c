"""``headway predictor``: samples of hidden states, a predictor trained on them, its card."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cli.options import add_model


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.set_defaults(run=run)
    kinds = parser.add_subparsers(dest="predictor", required=True, metavar="ACTION")
    _add_collect(kinds)
    _add_train(kinds)
    show = kinds.add_parser("show", help="print the card of a folder's newest version")
    show.add_argument("folder", type=Path, help="of one model's versions")


def _add_collect(kinds: Any) -> None:
    parser = kinds.add_parser("collect", help="run a model over prompts")
    add = parser.add_argument
    add_model(parser)
    add("--out", type=Path, required=True, metavar="FILE", help="samples (safetensors)")
    add(
        "--prompts",
        default="tasks",
        metavar="FILE",
        help="JSON lines with prompt or messages; default: the small model's tasks",
    )
    add("--num", type=int, default=2000, metavar="N", help="prompts (default 2000)")
    add("--every", type=int, default=20, metavar="K", help="tokens between samples (default 20)")
    add(
        "--temperature",
        type=float,
        action="append",
        metavar="T",
        help="give several times to take them in turn (default 0, 0.7 and 1)",
    )
    add("--max-tokens", type=int, default=1200, help="most output tokens (default 1200)")
    add("--num-running", type=int, default=32, metavar="N", help="requests at a time (default 32)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N")
    add("--num-threads", type=int, default=1, help="torch threads (default 1)")
    add("--seed", type=int, default=1, help="of prompts and draws (default 1)")


def _add_train(kinds: Any) -> None:
    add = kinds.add_parser("train", help="train on samples, write a version").add_argument
    add("samples", type=Path, nargs="+", help="what `headway predictor collect` wrote")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the model's versions")
    add("--rate", type=float, default=1e-3, help="peak learning rate (default 1e-3)")
    add("--batch-size", type=int, default=64, help="samples a step (default 64)")
    add("--epochs", type=int, default=100, help="at most (default 100)")
    add("--patience", type=int, default=10, help="epochs without a better one (default 10)")
    add(
        "--weight",
        type=float,
        default=0.0,
        help="of a prediction against earlier ones; 1: the paper's; default: best on validation",
    )
    add(
        "--hidden-only",
        action="store_true",
        help="read the state alone, as the paper's does, and not the tokens of prompt and output",
    )
    add("--search", type=int, default=0, metavar="N", help="trials of the paper's search space")
    add("--num-threads", type=int, default=1, help="torch threads (default 1)")
    add("--seed", type=int, default=0, help="of weights and batches (default 0)")


def run(args: argparse.Namespace) -> int:
    """Collect, train or show."""
    from models.lengths import commands  # needs torch

    if args.predictor == "collect":
        return commands.collect(args)
    if args.predictor == "train":
        return commands.train_version(args)
    return commands.show(args)
