"""``--policy`` and ``--set``: options of every command that runs policies."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

POLICY_VARIABLE, SET_VARIABLE = "HEADWAY_POLICY", "HEADWAY_SET"


class Chosen(NamedTuple):
    """Texts for ``headway.presets.parse_choice``: the environment's, then those of the flags."""

    policy: str = ""
    set: str = ""


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Register both options."""
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


def chosen(args: argparse.Namespace) -> Chosen:
    """Return what flags and environment say; a flag stands over the environment."""
    policy = [os.environ.get(POLICY_VARIABLE, ""), *args.policy]
    settings = [os.environ.get(SET_VARIABLE, ""), *args.set]
    return Chosen(",".join(filter(None, policy)), ",".join(filter(None, settings)))
