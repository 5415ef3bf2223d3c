"""``headway explain``: where a request went, which units were considered, and why.

``headway explain scaling`` explains the autoscaler instead (``explain_scaling``).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from bench.serve.client import Endpoint
from bench.serve.replay import error_text
from cli import explain_scaling
from headway.errors import Code, HeadwayError

MOST_LINE_CHARS = 1 << 24
MOST_OTHERS = 8
_LOADS = {"dispatch": ("C_avail", "chunk")}
"""Names of a unit's load in a decision, by question; the other questions give (B, K)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
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
    is_live = args.folder is None
    if is_live and args.request == "scaling":
        return explain_scaling.run(args)
    where = args.url if is_live else str(args.folder)
    lines: Iterable[str]
    if is_live:
        lines = live_lines(args.url, args.request, args.api_key)
    else:
        lines = _recorded_lines(args.folder)
    paragraphs = [each.text() for each in decisions_about(args.request, lines)]
    if not paragraphs:
        message = f"{where} has no decision about {args.request!r}"
        if is_live:
            message += "; its scheduler knows the last ones alone (--num-decisions-kept)"
        raise HeadwayError(Code.NOT_FOUND, message)
    print("\n".join(paragraphs))
    return 0


def _recorded_lines(folder: Path) -> Iterable[str]:
    path = folder / "decisions.jsonl"
    if not path.is_file():
        message = f"{path} is not there: record a run with `headway simulate … --out DIR`"
        raise HeadwayError(Code.NOT_FOUND, message)
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from lines


def live_lines(url: str, request_id: str, api_key: str = "") -> list[str]:
    """Return the live scheduler's decisions about a request, as a run would record them."""
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
        raise HeadwayError(Code.UNAVAILABLE, f"{base}: {error_text(error.read())}") from error
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        message = f"{base} does not answer as a gateway does ({error}): give its --url"
        raise HeadwayError(Code.UNAVAILABLE, message) from error
    return [json.dumps(decision) for decision in decisions]


@dataclass(frozen=True, slots=True)
class ExplainedDecision:
    """A decision about one request, and the units and requests considered with it."""

    at: float
    question: str
    rule: str
    unit: str
    score: tuple[float, ...]
    waited: float
    others: tuple[tuple[str, tuple[float, ...], int], ...]
    together_with: tuple[str, ...]
    num_left: int
    constants: tuple[tuple[str, float, str], ...] = ()

    def text(self) -> str:
        """Return a paragraph for people."""
        names = _LOADS.get(self.question, ("B", "K"))
        together = f", together with {len(self.together_with)} others" if self.together_with else ""
        score = ", ".join(f"{value:g}" for value in self.score)
        lines = [
            f"{self.at:12.4f} s  {self.question} by {self.rule}: to {self.unit}"
            f" (score {score or 'none'}) after {self.waited:.4f} s{together};"
            f" {self.num_left} left waiting"
        ]
        for unit, load, num_free in self.others[:MOST_OTHERS]:
            shown = ", ".join(f"{n} {v:g}" for n, v in zip(names, load, strict=False))
            mark = "→" if unit == self.unit else " "
            lines.append(f"{'':16} {mark} {unit:<20} {shown}, {num_free} free blocks")
        if len(self.others) > MOST_OTHERS:
            lines.append(f"{'':18} and {len(self.others) - MOST_OTHERS} more")
        if self.constants:
            used = ", ".join(f"{name} {value:.3g} ({of})" for name, value, of in self.constants)
            lines.append(f"{'':18} constants: {used}")
        return "\n".join(lines)


def decisions_about(request_id: str, lines: Iterable[str]) -> Iterator[ExplainedDecision]:
    """Read recorded decisions about the request, in order; HeadwayError for a malformed line."""
    for number, line in enumerate(lines, start=1):
        if request_id not in line:
            continue
        try:
            yield from _read_decision(request_id, json.loads(line[:MOST_LINE_CHARS]))
        except (ValueError, TypeError, LookupError) as error:
            message = f"line {number} is no decision ({error}): record the run again"
            raise HeadwayError(Code.INVALID_ARGUMENT, message) from error


def _read_decision(request_id: str, decision: dict[str, Any]) -> Iterator[ExplainedDecision]:
    names = [chosen[0] for chosen in decision["chosen"]]
    for name, unit, score, waited in decision["chosen"]:
        if name != request_id:
            continue
        others = [
            (u, tuple(map(float, load)), int(free)) for u, load, free in decision["considered"]
        ]
        yield ExplainedDecision(
            at=float(decision["at"]),
            question=str(decision["question"]),
            rule=str(decision["rule"]),
            unit=unit,
            score=tuple(map(float, score)),
            waited=float(waited),
            others=tuple(sorted(others, key=lambda o: (o[0] != unit, o[0]))),
            together_with=tuple(n for n in names if n != request_id),
            num_left=int(decision["left"]),
            constants=tuple(
                (str(name), float(value), str(source))
                for name, value, source in decision.get("constants", ())
            ),
        )
