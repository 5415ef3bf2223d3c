"""``headway vopr``: whole clusters in seeds, under every fault, checked all the time."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.options import add_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, metavar="N", help="run one history")
    what.add_argument("--seeds", metavar="A..B", help="run the histories A to B - 1")
    what.add_argument(
        "--scenario", type=Path, metavar="FILE", help="run a history that --shrink has written"
    )
    add("--preset", default="", help="policies of every history; default: each seed's own")
    add("--minutes", type=float, default=0.0, help="stop after so long; default: run them all")
    add("--shrink", action="store_true", help="drop what a failing history does not need")
    add("--out", type=Path, default=Path("."), metavar="DIR", help="where --shrink writes")
    add(
        "--require-all",
        action="store_true",
        help="fail unless every fault and every state was reached at least once",
    )
    add_json(parser, "write the figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the histories; return 1 if one broke a promise."""
    from headway.presets import find_preset
    from proof.vopr.campaign import SeedCampaign, parse_seeds
    from proof.vopr.report import figures, print_history, print_summary, write_shrunk
    from proof.vopr.scenario import parse
    from results.output import write_json

    if args.preset:
        find_preset(args.preset)
    if args.scenario is not None:
        campaign = SeedCampaign.of_scenario(parse(_text_of(args.scenario)))
    else:
        seeds = range(args.seed, args.seed + 1) if args.seeds is None else parse_seeds(args.seeds)
        campaign = SeedCampaign.of_seeds(seeds, args.preset)
    for history in campaign.run(minutes=args.minutes):
        if history.violations or campaign.is_single:
            print_history(history, args.preset)
        if history.violations and args.shrink:
            write_shrunk(history, args.out)
    missing = campaign.missing() if args.require_all else []
    print_summary(campaign, missing)
    write_json(args.json, figures(campaign, missing))
    return 1 if campaign.failed or missing else 0


def _text_of(path: Path) -> str:
    from headway.errors import Code, HeadwayError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HeadwayError(Code.NOT_FOUND, f"{path} cannot be read: {error}") from error
