"""The plan of a run: all requests and their instants, settled before the first leaves."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.serve.client import NO_HEADERS
from bench.serve.prompts import (
    RANDOM_TOKENS,
    Ask,
    Source,
    file_source,
    mini_source,
    random_source,
    trace_source,
)
from headway.errors import Code, HeadwayError, invalid
from headway.workload import arrivals as processes
from headway.workload.traces import TraceRow, load_trace

DEFAULT_REQUESTS = 100
MOST_REQUESTS = 1_000_000
STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
"""Usage in every event."""
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    model: str
    rate: float | None = None
    num_requests: int | None = None
    duration: float | None = None
    arrivals: str = ""
    burstiness: float = 1.0
    trace: Path | None = None
    speed: float | None = None
    spread: float | None = None
    prompts: str = ""
    endpoint: str = ""
    prompt_tokens: int = RANDOM_TOKENS
    max_tokens: int | None = None
    temperature: float | None = 0.0
    ignore_eos: bool = True
    seed: int = 0
    model_limit: int | None = None  # prompt and output tokens, where the server says it
    counts_tokens: bool = False  # have every event tell its tokens: some have no text


@dataclass(frozen=True, slots=True)
class Planned:
    """A request to send; ``arrival_at`` in seconds after the start.

    ``path``: of this request alone, "" for the plan's. ``headers``: beside the client's own.
    ``reasons``: False where all of the output is an answer. ``is_read``: False where nobody reads
    it as it comes.
    """

    index: int
    arrival_at: float
    body: bytes
    task: str
    answer: str | None
    path: str = ""
    reasons: bool = True
    is_read: bool = True
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests by arrival, the path they go to, and what a reader has to know of them."""

    path: str
    requests: Sequence[Planned]
    notes: tuple[str, ...]


def make_plan(options: Options) -> Plan:
    """Refuses (HeadwayError) options that contradict each other, and bad files."""
    _refuse_contradictions(options)
    notes: list[str] = []
    rng = random.Random(options.seed)
    rows = _trace_rows(options, rng, notes)
    instants = _instants(options, rows, rng)
    source, endpoint = _source(options, rows, notes)
    planned = []
    for index, at in enumerate(instants):
        row = rows[index % len(rows)] if rows else None
        ask = source(row, rng)
        body = _body(options, endpoint, ask)
        one = Planned(index, at, body, ask.task, ask.answer, reasons=ask.reasons)
        planned.append(one)
    if not planned:
        raise HeadwayError(
            Code.INVALID_ARGUMENT, "no request arrives: give more --duration, --rate or requests"
        )
    return Plan(PATHS[endpoint], planned, tuple(notes))


def timed(plan: Plan, instants: Sequence[float]) -> Plan:
    """Return the plan with other instants."""
    paired = zip(plan.requests, instants, strict=True)
    return replace(plan, requests=[replace(one, arrival_at=at) for one, at in paired])


def _refuse_contradictions(options: Options) -> None:
    if options.num_requests is not None and not 1 <= options.num_requests <= MOST_REQUESTS:
        raise invalid("--num-requests", options.num_requests, f"from 1 to {MOST_REQUESTS}")
    for name in ("rate", "speed", "duration"):
        value = getattr(options, name)
        if value is not None and not value > 0.0:
            raise invalid(f"--{name}", value, "over 0")
    own = options.arrivals or ("trace" if options.trace else "poisson")
    wrong = ""
    if options.trace is None and (options.arrivals == "trace" or options.prompts == "trace"):
        wrong = "arrivals or prompts of a trace need --trace FILE"
    elif own == "trace" and options.rate is not None and options.speed is not None:
        wrong = "--rate and --speed both stretch the trace: give one of them"
    elif own != "trace" and options.rate is None:
        wrong = f"{own} arrivals need a --rate in requests/s"
    elif own != "trace" and options.speed is not None:
        wrong = f"--speed stretches a trace's arrivals; {own} ones have a --rate"
    elif options.prompts == "random-tokens" and options.endpoint == "chat":
        wrong = "a chat endpoint takes no token ids: --endpoint completions"
    elif options.prompts == "mini" and options.endpoint == "completions":
        wrong = "the small model's tasks are chats: --endpoint chat"
    if wrong:
        raise HeadwayError(Code.INVALID_ARGUMENT, wrong)


# --- when -----------------------------------------------------------------------------


def _trace_rows(options: Options, rng: random.Random, notes: list[str]) -> tuple[TraceRow, ...]:
    """Return the trace's rows at the instants of this run; none without a trace."""
    if options.trace is None:
        return ()
    trace = load_trace(options.trace, options.num_requests or MOST_REQUESTS)
    width = trace.step if options.spread is None else options.spread
    if width > 0.0:
        trace = trace.spread(width, rng)
        notes.append(f"each arrival of the trace is spread over {width:g} s (its clock's step)")
    if options.arrivals not in ("", "trace"):
        notes.append(f"lengths are the trace's, arrivals are {options.arrivals}")
        return trace.rows
    speed = options.speed or 1.0
    if options.rate is not None:
        speed = options.rate / trace.mean_rate
    if speed != 1.0:
        notes.append(f"the trace runs at {speed:.4g} times its speed")
    return trace.faster(speed).rows


def _instants(options: Options, rows: Sequence[TraceRow], rng: random.Random) -> list[float]:
    if rows and options.arrivals in ("", "trace"):
        end = float("inf") if options.duration is None else options.duration
        return [row.arrival_at for row in rows if row.arrival_at <= end]
    num_requests = options.num_requests
    if num_requests is None:
        num_requests = DEFAULT_REQUESTS if options.duration is None else MOST_REQUESTS
    assert options.rate is not None
    return processes.arrivals(
        options.arrivals or "poisson",
        options.rate,
        rng,
        burstiness=options.burstiness,
        num_requests=num_requests,
        duration=options.duration,
    )


# --- what -----------------------------------------------------------------------------


def _source(options: Options, rows: Sequence[TraceRow], notes: list[str]) -> tuple[Source, str]:
    """Return the source of prompts, and the endpoint that takes them."""
    own_prompts = bool(rows) and all(row.prompt is not None for row in rows)
    name = options.prompts or ("trace" if own_prompts else "mini")
    chat = options.endpoint != "completions"
    if name == "mini":
        if rows:
            notes.append(
                "prompts are not the trace's but the small model's problems, those whose "
                "expected output is nearest in length"
            )
        return mini_source(), "chat"
    if name == "random-tokens":
        if options.model_limit is not None and rows:
            notes.append(f"lengths are cut to the model's {options.model_limit} tokens")
        source = random_source(
            options.prompt_tokens, options.model_limit, ignore_eos=options.ignore_eos
        )
        return source, "completions"
    endpoint = options.endpoint or "chat"
    if name == "trace":
        return trace_source(chat), endpoint
    if rows:
        notes.append(f"prompts are {name}'s, output limits and arrivals are the trace's")
    return file_source(Path(name), chat), endpoint


def _body(options: Options, endpoint: str, ask: Ask) -> bytes:
    body: dict[str, Any] = {
        "model": options.model,
        "stream": True,
        "stream_options": STREAM_OPTIONS if options.counts_tokens else {"include_usage": True},
        "messages" if endpoint == "chat" else "prompt": ask.prompt,
    }
    if options.temperature is not None:
        body["temperature"] = options.temperature
    max_tokens = options.max_tokens or ask.max_tokens
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if ask.ignore_eos:
        body["ignore_eos"] = True
    return json.dumps(body).encode()
