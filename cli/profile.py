"""``headway profile``: list the ready-made profiles, show one, measure one, fit one."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from headway.cost.fit import fit_pass_time
from headway.cost.pass_time import GATES, SLOWEST_UNIT
from headway.cost.passes import parse_passes
from headway.cost.profile import load_profile, profile_names, profile_text, save_profile
from headway.errors import Code, HeadwayError
from planning.calibrate.model import with_velocities


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    actions = parser.add_subparsers(dest="profile", required=True, metavar="ACTION")
    actions.add_parser("list", help="the ready-made ones, and where they are from").set_defaults(
        run=show_all
    )
    show = actions.add_parser("show", help="one as TOML")
    show.add_argument("name", help="of a ready-made one, or a file")
    show.set_defaults(run=show_one)
    actions.add_parser("run", help="measure one on this machine", module="cli.profile_run")
    fit = actions.add_parser("fit", help="make one from measured passes (docs/simulator.md)")
    add = fit.add_argument
    add("passes", type=Path, help="CSV or JSON lines")
    add("--like", required=True, metavar="PROFILE", help="where all but times comes from")
    add("--name", default="", help="of the new profile")
    add("--origin", default="", metavar="TEXT", help="where the passes were measured, and how")
    add("--gate", default=SLOWEST_UNIT, help=f"what DP units wait for: {', '.join(GATES)}")
    add("--out", type=Path, metavar="FILE", help="write the profile")
    fit.set_defaults(run=fit_one)


def show_all(args: argparse.Namespace) -> int:
    """Print a line for each."""
    for name in profile_names():
        print(f"{name:<32} {load_profile(name).origin}")
    return 0


def show_one(args: argparse.Namespace) -> int:
    """Print it as TOML; HeadwayError where there is none."""
    print(profile_text(load_profile(args.name)), end="")
    return 0


def fit_one(args: argparse.Namespace) -> int:
    """Fit, say how well it meets the passes, write; HeadwayError for what cannot be fitted."""
    like = load_profile(args.like)
    try:
        with args.passes.open(encoding="utf-8") as file:
            passes = parse_passes(file, str(args.passes))
    except (OSError, UnicodeDecodeError) as error:
        message = f"{args.passes} cannot be read: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="passes") from error
    fit = fit_pass_time(passes, gate=args.gate)
    profile = replace(
        like,
        name=args.name or args.passes.stem,
        origin=args.origin or f"fitted to {fit.num_passes} passes of {args.passes.name}",
        pass_time=fit.pass_time,
        convertible_tokens_per_s=None,
    )
    profile = with_velocities(profile)
    print(f"passes         {fit.num_passes}, terms {', '.join(fit.terms)}")
    print(f"R²             {fit.r_squared:.5f}")
    print(f"error          median {fit.median_error:.2%}, P95 {fit.p95_error:.2%} of a pass")
    for term in fit.terms:
        print(f"{term:<20} {getattr(fit.pass_time, term):.6g} s")
    if args.out is not None:
        save_profile(profile, args.out)
    return 0
