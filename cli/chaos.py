"""``headway chaos``: faults on the live processes of a cluster under load."""

from __future__ import annotations

import argparse
import secrets
import time
from pathlib import Path

from cli.options import parse_seconds

_SHAPE = ("--prefill", "2", "--decode", "2", "--schedulers", "2", "--drain-timeout", "5")
_DAY = 86_400  # seconds
_EPILOG = (
    "The seed chooses the preset; a fresh seed's is that of the day, all of them in turn. "
    "Every flag of `headway up` may follow and changes the cluster: --preset headway --decode 3. "
    "Exit status: 0 where every promise was kept, 1 where one was broken. See docs/reliability.md."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--for", dest="seconds", type=parse_seconds, default=60.0, help="60s, 5m or 1h (60s)")
    add("--seed", type=int, metavar="N", help="of preset, faults and requests (a fresh one)")
    add("--faults", default="", metavar="LIST", help="kinds, or none; --faults help lists them")
    add("--rate", type=float, default=0.5, help="faults per second, on average (0.5)")
    add("--most", type=int, default=0, metavar="N", help="faults, then only load (no limit)")
    add("--at-once", type=int, default=3, metavar="N", help="faults at the same time (3)")
    add("--streams", type=int, default=8, metavar="N", help="requests at the same time (8)")
    add("--patience", type=float, default=120.0, help="longest time for an answer, s (120)")
    add("--url", default="", help="send the load to a running gateway, with no faults")
    add("--model-name", default="headway-mini", help="the model that requests name")
    add("--api-key", default="", help="for --url")
    add("--log-dir", type=Path, default=Path("run/chaos"), help="logs (run/chaos)")
    add("--failpoints", action="store_true", help="list the failpoints that services have, and end")
    add("--json", type=Path, metavar="FILE", help="write the whole report")
    parser.set_defaults(run=run, service_flags=[])


def run(args: argparse.Namespace) -> int:
    """Run the campaign and print its report; return 1 where a promise was broken."""
    import asyncio

    from bench.serve.client import Endpoint
    from cli import up
    from headway.errors import require_between, require_over
    from proof.chaos.campaign import CampaignPlan, ChaosCampaign, run_on_cluster
    from proof.chaos.faults import FAULTS
    from services.local.refusals import refuse_wrong_options
    from services.local.store import free_port
    from services.runtime.failpoints import FAILPOINTS

    if args.faults == "help" or args.failpoints:
        faults = {name: (fault.__doc__ or "").splitlines()[0] for name, fault in FAULTS.items()}
        for name, text in (FAILPOINTS if args.failpoints else faults).items():
            print(f"{name:<27} {text}")
        return 0
    for name, value in (
        ("--for", args.seconds),
        ("--rate", args.rate),
        ("--patience", args.patience),
    ):
        require_over(name, value, 0.0)
    require_between("--at-once", args.at_once, 1, 64)
    require_between("--streams", args.streams, 1, 1024)
    seed = _fresh_seed() if args.seed is None else args.seed
    plan = CampaignPlan(
        seconds=args.seconds,
        seed=seed,
        kinds=_kinds(args.faults),
        rate=args.rate,
        most_faults=args.most,
        at_once=args.at_once,
        streams=args.streams,
        patience=args.patience,
    )
    _say(f"seed {seed}")
    if args.url:
        endpoint = Endpoint.parse(args.url, args.api_key)
        report = asyncio.run(ChaosCampaign(plan, args.model_name, endpoint, _say).run(None))
    else:
        port = free_port(40)
        ours = ("--port", str(port), "--metrics-port", str(port + 2))
        options = up.parse(["--preset", _preset_of(seed), *_SHAPE, *ours, *args.service_flags])
        refuse_wrong_options(options, args.log_dir)
        report = asyncio.run(run_on_cluster(plan, options, args.log_dir, _say))
    print("\n".join(["", *report.lines()]))
    if args.json is not None:
        report.write(args.json)
    return 0 if report.holds else 1


def _fresh_seed() -> int:
    """Return a seed that nobody has tried, whose preset is that of the day."""
    from headway.presets import PRESETS

    return secrets.randbelow(2**20) * len(PRESETS) + int(time.time() // _DAY) % len(PRESETS)


def _preset_of(seed: int) -> str:
    from headway.presets import PRESETS

    return list(PRESETS)[seed % len(PRESETS)]


def _kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of faults that were asked for; HeadwayError for an unknown one."""
    from headway.errors import invalid
    from proof.chaos.faults import DEFAULT, FAULTS

    if text in ("", "none"):
        return () if text else DEFAULT
    kinds = tuple(name.strip() for name in text.split(","))
    for name in kinds:
        if name not in FAULTS:
            raise invalid("--faults", name, f"of {', '.join(FAULTS)}, or none")
    return kinds


def _say(line: str) -> None:
    print(line, flush=True)
