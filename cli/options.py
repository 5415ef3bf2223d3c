"""Options that several subcommands have, and their limits."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headway.errors import Code, invalid, require_between
from headway.presets import find_preset, parse_choice
from services.runtime.rooms import SHIPPED_MODEL, model_folder

POLICY_VARIABLE, SET_VARIABLE = "HEADWAY_POLICY", "HEADWAY_SET"
REFUSALS = {400: Code.INVALID_ARGUMENT, 404: Code.NOT_FOUND}
"""The codes of HTTP statuses with which a gateway refuses a wrong call."""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


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


def parse_seeds(text: str) -> Sequence[int]:
    """Return seeds 1 to N for a number, and those of a list by comma (``101,`` is one seed)."""
    try:
        given = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        given = []
    if not given or len(set(given)) < len(given) or min(given) < 0:
        raise invalid("--seeds", text, "a number of runs, or different seeds by comma: 101,102")
    if "," in text:
        return given
    require_between("--seeds", given[0], 1, 1000)
    return range(1, given[0] + 1)


def parse_presets(text: str) -> list[str]:
    """Return the presets that are compared; HeadwayError unless they are two or more."""
    presets = [name for name in text.split(",") if name]
    for name in presets:
        find_preset(name)
    if len(set(presets)) < max(2, len(presets)):
        raise invalid("--presets", text, "two different ones or more, by comma")
    return presets


def parse_seconds(text: str) -> float:
    """Return the seconds of ``60s``, ``5m`` or ``1h``; argparse's type of an option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 60s, 5m or 1h")
    return float(match.group(1)) * _UNITS[match.group(2)]


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


def refuse_unknown(preset: str, args: argparse.Namespace) -> None:
    """Refuse a preset, policy or parameter that does not exist (HeadwayError).

    What runs them refuses them, too; this says it before that is imported. ``preset``: "" for the
    services' own.
    """
    from headway.policies import registry  # --help needs none of it

    choice = parse_choice(*chosen(args))
    own = find_preset(preset or "sbs").but(choice.policies)
    for question in (*choice.policies, *choice.params):
        if question == "scaling" and question not in choice.policies:
            continue  # --autoscale takes another one where the preset's scales nothing
        name = getattr(own, question)
        params = choice.params.get(question, {})
        registry.find(question, name).typed(f"{question} {name}", params)
