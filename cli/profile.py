"""``headway profile``: list the ready-made profiles, show one, measure one, check one."""

from __future__ import annotations

import argparse

from headway.cost.profile import load_profile, profile_names, profile_text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="the ready-made ones, and where they are from").set_defaults(
        run=show_all
    )
    show = actions.add_parser("show", help="one as TOML")
    show.add_argument("name", help="of a ready-made one, or a file")
    show.set_defaults(run=show_one)
    actions.add_parser("run", help="measure one on this machine", module="cli.profile_run")
    check = "predict other loads, ask them live, and compare"
    actions.add_parser("check", help=check, module="cli.profile_check")


def show_all(args: argparse.Namespace) -> int:
    """Print a line for each."""
    for name in profile_names():
        print(f"{name:<32} {load_profile(name).origin}")
    return 0


def show_one(args: argparse.Namespace) -> int:
    """Print it as TOML; HeadwayError where there is none."""
    print(profile_text(load_profile(args.name)), end="")
    return 0
