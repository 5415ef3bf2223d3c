"""``headway trace``: the last requests of a live gateway, as a file for Perfetto."""

from __future__ import annotations

import argparse
import json
from math import isfinite
from pathlib import Path

from cli.explain import fetch
from headway.errors import Code, HeadwayError, invalid
from headway.life.reasons import several
from services.local.run_file import running_url


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="JSON in Chrome's trace format")
    add("--since", type=float, metavar="SECONDS", help="since the epoch; default: all it knows")
    add("--url", default="", help="a gateway of the live cluster; default: of `headway up` here")
    add("--log-dir", type=Path, default=Path("run"), help="of `headway up`, which leaves it there")
    add("--api-key", default="", help="an operator's; default: $HEADWAY_API_KEY")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file; HeadwayError where no gateway answers."""
    if args.since is not None and not isfinite(args.since):
        raise invalid("--since", args.since, "seconds since the epoch")
    since = "" if args.since is None else f"?since={args.since!r}"
    trace = fetch(args.url or running_url(args.log_dir), f"/trace.json{since}", args.api_key)
    write_trace(args.out, trace)
    num_requests = sum(event["name"] == "thread_name" for event in trace["traceEvents"])
    print(f"{args.out}: {several(num_requests, 'request')}; open it at https://ui.perfetto.dev")
    return 0


def write_trace(path: Path, trace: object) -> None:
    """Write it; HeadwayError where that fails."""
    try:
        path.write_text(json.dumps(trace, separators=(",", ":")), "utf-8")
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="--out") from error
