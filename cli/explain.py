"""``headway explain``: what a request's time went into, where it went, and why.

``headway explain scaling`` explains the autoscaler instead (``explain_scaling``).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from bench.serve.client import Endpoint, error_text
from cli import explain_what_if
from cli.explain_life import life_text, time_of
from cli.explain_own import OwnUnitReasons
from cli.options import REFUSALS
from headway.errors import Code, HeadwayError
from headway.life.form import unpacked
from headway.life.reasons import several
from headway.life.record import LifeRecord
from headway.request import is_named
from results.recording import DECISIONS, LIVES
from services.local.run_file import SECRET_FILE, running_url

MOST_LINE_CHARS = 1 << 24
MOST_OTHERS = 8
_TIMEOUT = 60.0  # seconds
_PATIENCE = 150.0  # seconds for what is computed first
_LOADS = {"dispatch": ("room", "chunk")}
"""Names of a unit's load in a decision, by question; the others give its batch and KV."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    add = parser.add_argument
    add(
        "request",
        help="its id: x-request-id, or as in a run's requests.jsonl; or `scaling`",
    )
    add(
        "--run",
        dest="folder",
        type=Path,
        metavar="DIR",
        help="one run of `headway simulate --out`; default: the live cluster",
    )
    add("--log-dir", type=Path, default=Path("run"), help="of `headway up`, which leaves it there")
    add("--url", default="", help="a gateway of the live cluster; default: of `headway up` here")
    add("--api-key", default="", help="default: $HEADWAY_API_KEY")
    add(
        "--what-if",
        default=explain_what_if.USUAL,
        metavar="PRESETS",
        help="presets by comma whose simulated times are told beside the request's own "
        f"({explain_what_if.USUAL}); '' for none",
    )
    add("--profile", default="", metavar="NAME", help="costs of an instance for --what-if")
    _add_scaling(parser.add_argument_group("scaling"))
    parser.set_defaults(run=run)


def _add_scaling(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--autoscaler", default="", metavar="HOST:PORT", help="default: found in the store")
    add("--store", default="", help="its URL; default: of `headway up`, else $HEADWAY_STORE")
    add("--cluster", default="", help="its name in the store; default: that of `headway up`")
    default = f"$HEADWAY_CLUSTER_SECRET_FILE, or {SECRET_FILE} of --log-dir, if there"
    add("--cluster-secret-file", type=Path, metavar="FILE", help=f"default: {default}")
    add("--certs", type=Path, metavar="DIR", help="with an operator's certificate: run/certs")
    add("--last", type=int, default=0, metavar="N", help="decisions looked at (default: all kept)")
    add("--all", dest="every", action="store_true", help="those that changed nothing, too")


def run(args: argparse.Namespace) -> int:
    """Print the life of each output and every decision; HeadwayError where there is neither."""
    presets = explain_what_if.parse_presets(args.what_if)
    explain_what_if.require_profile(args.profile)
    is_live = args.folder is None
    if is_live and args.request == "scaling":
        from cli import explain_scaling  # gRPC and the store, which nothing else here needs

        return explain_scaling.run(args)
    where = (args.url or running_url(args.log_dir)) if is_live else str(args.folder)
    call = (
        ask(where, args.request, args.api_key) if is_live else _recorded(args.folder, args.request)
    )
    texts = [text for output in call.outputs if (text := output.text())]
    if not texts:
        message = f"{where} has no decision about {args.request!r}"
        if is_live:
            message += "; its gateway (--num-lives) and its scheduler (--num-decisions-kept) "
            message += "know the last ones alone"
        raise HeadwayError(Code.NOT_FOUND, message)
    for number, text in enumerate(texts, start=1):
        if len(texts) > 1:
            print(f"output {number} of {len(texts)}:")
        print(text, flush=True)
    if call.num_older:
        older = several(call.num_older, "older call")
        print(f"({older} of this id: the log's request_ended lines name them)")
    _tell_what_if(args, where, call, presets)
    return 0


def _tell_what_if(
    args: argparse.Namespace, where: str, call: ExplainedCall, presets: Sequence[str]
) -> None:
    """Print what other policies would have done with the output that took longest."""
    lives = [output.life for output in call.outputs if output.life is not None]
    if not lives or not args.what_if:
        return
    longest = max(lives, key=lambda life: life.total)
    if len(lives) > 1:
        print(f"of {longest.request_id}, which took longest,")
    print("\n".join(explain_what_if.replay_lines(longest, presets, _replays(args, where))))


def _replays(args: argparse.Namespace, where: str) -> explain_what_if.Replays:
    """Return what replays a request with a preset: a gateway, or this process for a run."""
    if args.folder is not None:
        from cli.explain_run import SimulatedRun

        return SimulatedRun(args.folder).replay

    def replay(life: LifeRecord, preset: str) -> explain_what_if.ReplayedTimes:
        asked = {"request": life.request_id, "preset": preset, "profile": args.profile}
        answer = fetch(where, explain_what_if.PATH, args.api_key, asked)
        return explain_what_if.read_times(answer)

    return replay


def _recorded(folder: Path, request_id: str) -> ExplainedCall:
    output = ExplainedOutput(
        request_id, _recorded_life(folder, request_id), _recorded_lines(folder)
    )
    return ExplainedCall([output])


def _recorded_lines(folder: Path) -> Iterator[str]:
    path = folder / DECISIONS
    if not path.is_file():
        message = f"{path} is not there: record a run with `headway simulate … --out DIR`"
        raise HeadwayError(Code.NOT_FOUND, message)
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from lines


def _recorded_life(folder: Path, request_id: str) -> LifeRecord | None:
    path = folder / LIVES
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if request_id not in line:
                continue
            life = unpacked(json.loads(line[:MOST_LINE_CHARS]))
            if is_named(life.request_id, request_id):
                return life
    return None


def ask(url: str, request_id: str, api_key: str = "") -> ExplainedCall:
    """Return what a live gateway knows of a call: the newest one that the id names."""
    answer = fetch(url, f"/explain/{quote(request_id, safe='')}", api_key)
    try:
        outputs = [_read_output(each) for each in (answer, *answer.get("others", ()))]
        return ExplainedCall(outputs, int(answer.get("num_older", 0)))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise _no_gateway(url, error) from error


def _read_output(fields: Mapping[str, Any]) -> ExplainedOutput:
    decisions, life_fields = fields["decisions"], fields.get("life")
    life = None if life_fields is None else unpacked(life_fields)
    name = decisions[0]["chosen"][0][0] if decisions else str(fields["request_id"])
    request_id = name if life is None else life.request_id
    return ExplainedOutput(request_id, life, [json.dumps(decision) for decision in decisions])


def fetch(url: str, path: str, api_key: str = "", asked: object = None) -> Any:
    """Return a gateway's JSON answer; HeadwayError where there is none. ``asked`` is sent to it."""
    Endpoint.parse(url)  # refuses what is no http address
    base = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    request = Request(f"{base}{path}")
    if asked is not None:
        request.data = json.dumps(asked).encode()
        request.add_header("Content-Type", "application/json")
    key = api_key or os.environ.get("HEADWAY_API_KEY", "")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urlopen(request, timeout=_TIMEOUT if asked is None else _PATIENCE) as response:
            return json.load(response)
    except HTTPError as error:
        code = REFUSALS.get(error.code, Code.UNAVAILABLE)
        raise HeadwayError(code, f"{base}: {error_text(error.read())}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _no_gateway(base, error) from error


def _no_gateway(url: str, error: Exception) -> HeadwayError:
    message = f"{url} does not answer as a gateway does ({error}): give its --url"
    return HeadwayError(Code.UNAVAILABLE, message)


class ExplainedOutput(NamedTuple):
    """One output of a call: its life, and decisions as JSON lines."""

    request_id: str
    life: LifeRecord | None
    lines: Iterable[str]

    def text(self) -> str:
        """Return it for people, "" for nothing."""
        paragraphs = [each.text() for each in decisions_about(self.request_id, self.lines)]
        if self.life is not None:
            paragraphs.insert(0, life_text(self.life) + ("\ndecisions:" if paragraphs else ""))
        return "\n".join(paragraphs)


class ExplainedCall(NamedTuple):
    """A call; ``num_older``: earlier calls that its client gave the same id."""

    outputs: Sequence[ExplainedOutput]
    num_older: int = 0


class ConsideredUnit(NamedTuple):
    """A unit before the decision; ``predicted_tokens`` is K_pred, ``score`` what it compared."""

    unit: str
    load: tuple[float, ...]
    num_free_blocks: int
    predicted_tokens: float | None = None
    score: tuple[float, ...] = ()

    def text(self, names: Sequence[str]) -> str:
        """Return its part of a line; ``names`` of its loads."""
        parts = [f"{n} {v:g}" for n, v in zip(names, self.load, strict=False)]
        if self.predicted_tokens is not None:
            parts.append(f"predicted {self.predicted_tokens:.6g}")
        if self.score:
            score = ", ".join(f"{value:g}" for value in self.score)
            parts.append(f"score ({score})")
        return ", ".join([*parts, f"{self.num_free_blocks} free blocks"])


@dataclass(frozen=True, slots=True)
class ExplainedDecision:
    """A decision about one request, and the units and requests considered with it."""

    at: float
    question: str
    rule: str
    unit: str
    score: tuple[float, ...]
    waited: float
    others: tuple[ConsideredUnit, ...]
    num_beside: int
    num_left: int
    constants: tuple[tuple[str, float, str], ...] = ()
    own: OwnUnitReasons | None = None

    def text(self) -> str:
        """Return a paragraph for people."""
        names = _LOADS.get(self.question, ("batch", "KV tokens"))
        together = f", together with {several(self.num_beside, 'other')}" if self.num_beside else ""
        score = ", ".join(f"{value:g}" for value in self.score)
        lines = [
            f"{time_of(self.at):>12}  {self.question} by {self.rule}: to {self.unit}"
            f" (score {score or 'none'}) after {self.waited:.4f} s{together};"
            f" {self.num_left} left waiting"
        ]
        if self.own is not None:
            lines += [f"{'':18} {line}" for line in self.own.lines(self.unit)]
        for other in self.others[:MOST_OTHERS]:
            mark = "→" if other.unit == self.unit else " "
            lines.append(f"{'':16} {mark} {other.unit:<20} {other.text(names)}")
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


def _read_unit(
    unit: str,
    load: Sequence[float],
    num_free: int,
    predicted: float | None = None,
    score: Sequence[float] = (),
) -> ConsideredUnit:
    tokens = None if predicted is None else float(predicted)
    return ConsideredUnit(
        str(unit), tuple(map(float, load)), int(num_free), tokens, tuple(map(float, score))
    )


def _read_decision(request_id: str, decision: dict[str, Any]) -> Iterator[ExplainedDecision]:
    for name, unit, score, waited, *own in decision["chosen"]:
        if not is_named(name, request_id):
            continue
        others = [_read_unit(*each) for each in decision["considered"]]
        yield ExplainedDecision(
            at=float(decision["at"]),
            question=str(decision["question"]),
            rule=str(decision["rule"]),
            unit=unit,
            score=tuple(map(float, score)),
            waited=float(waited),
            others=tuple(sorted(others, key=lambda o: (o.unit != unit, o.unit))),
            num_beside=int(decision.get("beside", 0))
            + sum(not is_named(each[0], request_id) for each in decision["chosen"]),
            num_left=int(decision["left"]),
            constants=tuple(
                (str(name), float(value), str(source))
                for name, value, source in decision.get("constants", ())
            ),
            own=OwnUnitReasons.read(own[0]) if own else None,
        )
