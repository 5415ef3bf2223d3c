"""Options that several subcommands have, and their limits."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NamedTuple

from headway.errors import require_between
from services.runtime.rooms import SHIPPED_MODEL, model_folder

POLICY_VARIABLE, SET_VARIABLE = "HEADWAY_POLICY", "HEADWAY_SET"


def add_model(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    says: str = "hub id or folder of the checkpoint",
) -> None:
    """Register ``--model``; a model that Headway ships goes by its name."""
    says += f" (default: {SHIPPED_MODEL}, which Headway ships)"
    parser.add_argument(
        "--model", type=model_folder, default=SHIPPED_MODEL, metavar="MODEL", help=says
    )


def add_json(parser: argparse.ArgumentParser, says: str) -> None:
    """Register ``--json``, a file for the results."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=says)


def require_ranges(args: argparse.Namespace, **limits: tuple[float, float]) -> None:
    """Refuse options outside of their least and most values, both included."""
    for name, (least, most) in limits.items():
        require_between(f"--{name.replace('_', '-')}", getattr(args, name), least, most)


# --- policies -------------------------------------------------------------------------


class ChoiceTexts(NamedTuple):
    """Texts for ``headway.presets.parse_choice``: the environment's, then those of the flags."""

    policy: str = ""
    set: str = ""


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Register ``--policy`` and ``--set``."""
    add = parser.add_argument
    add(
        "--policy",
        action="append",
        default=[],
        metavar="QUESTION=NAME",
        help="another policy than the preset's, repeatable (`headway policies` lists them)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="QUESTION.PARAMETER=VALUE",
        help="a parameter of a policy, repeatable (`headway policies --parameters` lists them)",
    )


def chosen(args: argparse.Namespace) -> ChoiceTexts:
    """Return what flags and environment say; a flag stands over the environment."""
    policy = [os.environ.get(POLICY_VARIABLE, ""), *args.policy]
    settings = [os.environ.get(SET_VARIABLE, ""), *args.set]
    return ChoiceTexts(",".join(filter(None, policy)), ",".join(filter(None, settings)))
