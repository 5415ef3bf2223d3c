"""Options that several subcommands have, and what they do."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

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


def write_json(file: Path | None, rows: object) -> None:
    """Write rows to the file of ``--json``, where it was given."""
    if file is not None:
        file.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
