"""``headway explain``: what was decided for a request, who else was considered, and why.

``headway explain scaling`` tells of the autoscaler instead (``explain_scaling``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from cli import explain_scaling


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("explain", help="why a request went where it went")
    add = parser.add_argument
    add(
        "request",
        help="its id: x-request-id of a response, or as in a run's requests.jsonl; or `scaling`",
    )
    add(
        "--run",
        dest="folder",
        type=Path,
        metavar="DIR",
        help="one run of `headway simulate --out`; default: the live cluster",
    )
    add("--url", default="http://127.0.0.1:8000", help="the gateway of the live cluster")
    add("--api-key", default="", help="default: $HEADWAY_API_KEY")
    explain_scaling.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every decision; HeadwayError where there is none."""
    from headway.core.scheduler.explanations import told_of
    from headway.errors import Code, HeadwayError

    is_live = args.folder is None
    if is_live and args.request == "scaling":
        return explain_scaling.run(args)
    where = args.url if is_live else str(args.folder)
    lines: Iterable[str]
    if is_live:
        lines = live_lines(args.url, args.request, args.api_key)
    else:
        lines = _recorded_lines(args.folder)
    told = [each.text() for each in told_of(args.request, lines)]
    if not told:
        message = f"{where} has no decision about {args.request!r}"
        if is_live:
            message += "; its scheduler knows the last ones alone (--num-decisions-kept)"
        raise HeadwayError(Code.NOT_FOUND, message)
    print("\n".join(told))
    return 0


def _recorded_lines(folder: Path) -> Iterable[str]:
    from headway.errors import Code, HeadwayError

    path = folder / "decisions.jsonl"
    if not path.is_file():
        message = f"{path} is not there: record a run with `headway simulate … --out DIR`"
        raise HeadwayError(Code.NOT_FOUND, message)
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from lines


def live_lines(url: str, request_id: str, api_key: str = "") -> list[str]:
    """The live scheduler's decisions about a request, as a run would record them."""
    import json
    import os
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import quote
    from urllib.request import Request, urlopen

    from bench.serve.client import Endpoint
    from headway.errors import Code, HeadwayError

    Endpoint.parse(url)  # refuses what is no http address
    base = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    request = Request(f"{base}/explain/{quote(request_id, safe='')}")
    key = api_key or os.environ.get("HEADWAY_API_KEY", "")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urlopen(request, timeout=10) as response:
            decisions = json.load(response)["decisions"]
    except HTTPError as error:
        from bench.serve.replay import error_text

        raise HeadwayError(Code.UNAVAILABLE, f"{base}: {error_text(error.read())}") from error
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        message = f"{base} does not answer as a gateway does ({error}): give its --url"
        raise HeadwayError(Code.UNAVAILABLE, message) from error
    return [json.dumps(decision) for decision in decisions]
