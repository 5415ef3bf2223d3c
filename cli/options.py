"""Options that several subcommands have."""

from __future__ import annotations

import argparse

from services.runtime.rooms import SHIPPED_MODEL, model_folder


def add_model(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    says: str = "hub id or folder of the checkpoint",
) -> None:
    """Register ``--model``; a model that Headway ships goes by its name."""
    says += f" (default: {SHIPPED_MODEL}, which Headway ships)"
    parser.add_argument(
        "--model", type=model_folder, default=SHIPPED_MODEL, metavar="MODEL", help=says
    )
