"""Recorded arrivals: Azure's and BurstGPT's CSV, Mooncake's JSON lines, plain rows of our own.

A plain row has ``arrival_at`` (s) and, each optional, ``prompt``, ``prompt_tokens``,
``output_tokens`` and ``reasoning_tokens`` (how many of the output come before the answer). A
malformed row is refused with the file, the line and the value.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from headway.errors import Code, HeadwayError, invalid
from headway.workload.rows import BadValueError, Record, Rows, instant, open_text, read_rows, tokens


@dataclass(frozen=True, slots=True)
class TraceRow:
    """An arrival; ``arrival_at`` in seconds, None for what the trace does not say.

    ``prefix_hashes``: of the prompt's blocks of 512 tokens from its beginning (Mooncake); equal
    ones hold the same tokens. ``reasoning_tokens`` are the first of the ``output_tokens``.
    ``kind``: the class of requests that it belongs to, "" for any.
    """

    arrival_at: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prompt: str | None = None
    prefix_hashes: tuple[int, ...] = ()
    reasoning_tokens: int = 0
    kind: str = ""


class Recorded(Protocol):
    """Arrivals that were seen, or drawn like those that were."""

    def replay(self, rate: float, rng: random.Random) -> Iterator[TraceRow]:
        """Rows by arrival; time runs faster or slower for a mean of ``rate``/s, 0 for its own."""

    def between(self, start: float, end: float) -> Recorded:
        """Return what came from ``start`` until ``end``, s from the beginning; HeadwayError if
        nothing did.
        """


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows by arrival, the first at 0; ``step``: its clock's in s, 0 where that is under 1."""

    format: str
    rows: tuple[TraceRow, ...]
    step: float = 0.0

    @property
    def mean_rate(self) -> float:
        """Requests per second from the first arrival to the last; inf where all came at once."""
        span = self.rows[-1].arrival_at
        return (len(self.rows) - 1) / span if span > 0.0 else math.inf

    def faster(self, speed: float) -> Trace:
        """Return the same arrivals in 1/``speed`` of the time, over 0 (HeadwayError)."""
        if not speed > 0.0:
            message = "all arrivals of the trace come at once, at no rate: leave the rate out"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="rate")
        if math.isinf(speed):
            return replace(self, rows=tuple(replace(row, arrival_at=0.0) for row in self.rows))
        moved = (replace(row, arrival_at=row.arrival_at / speed) for row in self.rows)
        return replace(self, rows=tuple(moved), step=self.step / speed)

    def between(self, start: float, end: float) -> Trace:
        """Return the arrivals from ``start`` until ``end``, the window's beginning at 0."""
        kept = tuple(
            replace(row, arrival_at=row.arrival_at - start)
            for row in self.rows
            if start <= row.arrival_at < end
        )
        if not kept:
            last = f"a time with arrivals: the last comes at {self.rows[-1].arrival_at:g} s"
            raise invalid("workload.start and end", (start, end), last)
        return replace(self, rows=kept)

    def spread(self, width: float, rng: random.Random) -> Trace:
        """Move each arrival uniformly within the next ``width`` seconds: undo a coarse clock."""
        moved = (
            replace(row, arrival_at=row.arrival_at + width * rng.random()) for row in self.rows
        )
        return replace(self, rows=_from_zero(moved), step=0.0)

    def replay(self, rate: float, rng: random.Random) -> Iterator[TraceRow]:
        """Rows by arrival at a mean of ``rate``, 0 for the trace's own; a coarse clock's spread."""
        trace = self.spread(self.step, rng) if self.step else self  # else they come in volleys
        return iter((trace.faster(rate / trace.mean_rate) if rate else trace).rows)


def load_trace(path: Path, most_rows: int | None = None) -> Trace:
    """Load a file, gzipped (.gz) or not; HeadwayError says why it cannot be read."""
    with open_text(path, "trace") as lines:
        return read_trace(lines, str(path), most_rows=most_rows)


def read_trace(lines: Iterable[str], name: str, *, most_rows: int | None = None) -> Trace:
    """Return the first ``most_rows`` rows; HeadwayError for an unknown format or row."""
    source = read_rows(lines, name)
    format_name, parse = _format(source)
    rows: list[TraceRow] = []
    for number, record in source.records:
        if most_rows is not None and len(rows) >= most_rows:
            break
        try:
            row = parse(record)
        except BadValueError as bad:
            raise source.wrong(number, bad) from None
        if row is not None:
            rows.append(row)
    if not rows:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{name} has a header and no rows")
    step = _clock_step(rows) if format_name == "mooncake" else 0.0
    return Trace(format_name, _from_zero(rows), step)


def _from_zero(rows: Iterable[TraceRow]) -> tuple[TraceRow, ...]:
    ordered = sorted(rows, key=lambda row: row.arrival_at)
    start = ordered[0].arrival_at
    return tuple(replace(row, arrival_at=row.arrival_at - start) for row in ordered)


def _clock_step(rows: Sequence[TraceRow]) -> float:
    """The least gap, where arrivals coincide and none are closer than a second; else 0."""
    instants = sorted({row.arrival_at for row in rows})
    least = min((after - at for at, after in itertools.pairwise(instants)), default=0.0)
    return round(least, 1) if least >= 1.0 and len(instants) < len(rows) else 0.0


# --- formats --------------------------------------------------------------------------

Parse = Callable[[Record], TraceRow | None]
"""None for a row that is no request."""


def _azure_row(record: Record) -> TraceRow:
    value = record["TIMESTAMP"]
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        limit = "a date and time, 2023-11-16 18:15:46.68"
        raise BadValueError("TIMESTAMP", value, limit) from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return TraceRow(
        at.timestamp(), tokens(record, "ContextTokens"), tokens(record, "GeneratedTokens")
    )


def _burstgpt_row(record: Record) -> TraceRow | None:
    """Failed requests have no response tokens, and are left out."""
    if record.get("Response tokens") == "0":
        return None
    return TraceRow(
        instant(record, "Timestamp", "seconds"),
        tokens(record, "Request tokens"),
        tokens(record, "Response tokens"),
    )


def _mooncake_row(record: Record) -> TraceRow:
    milliseconds = instant(record, "timestamp", "milliseconds")
    hashes = record.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
        raise BadValueError("hash_ids", hashes, "a list of whole numbers")
    return TraceRow(
        milliseconds / 1000,
        tokens(record, "input_length"),
        tokens(record, "output_length"),
        prefix_hashes=tuple(hashes),
    )


def _plain_row(record: Record) -> TraceRow:
    prompt = record.get("prompt")
    if prompt is not None and (not isinstance(prompt, str) or not prompt):
        raise BadValueError("prompt", prompt, "a text of at least one character")
    prompt_tokens, output_tokens = (
        None if record.get(name) is None else tokens(record, name)
        for name in ("prompt_tokens", "output_tokens")
    )
    at = instant(record, "arrival_at", "seconds")
    reasoning = 0
    if record.get("reasoning_tokens") is not None:
        reasoning = tokens(record, "reasoning_tokens", least=0)
        if output_tokens is None or reasoning >= output_tokens:
            limit = f"less than output_tokens, which is {output_tokens}"
            raise BadValueError("reasoning_tokens", reasoning, limit)
    return TraceRow(at, prompt_tokens, output_tokens, prompt, reasoning_tokens=reasoning)


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
_MOONCAKE = ("timestamp", "input_length", "output_length")
_FORMATS: tuple[tuple[str, bool | None, tuple[str, ...], Parse], ...] = (
    ("azure", False, _AZURE, _azure_row),
    ("burstgpt", False, _BURSTGPT, _burstgpt_row),
    ("mooncake", True, _MOONCAKE, _mooncake_row),
    ("plain", None, ("arrival_at",), _plain_row),
)
"""Each with whether it is JSON (None: either), what its rows have, and how they are read."""
_KNOWN = (
    "TIMESTAMP,ContextTokens,GeneratedTokens (Azure), Timestamp,Request tokens,Response tokens"
    " (BurstGPT), timestamp, input_length, output_length (Mooncake) or arrival_at[, prompt]"
    "[, prompt_tokens][, output_tokens][, reasoning_tokens]"
)


def _format(source: Rows) -> tuple[str, Parse]:
    for name, is_json, keys, parse in _FORMATS:
        if is_json in (source.is_json, None) and set(keys) <= set(source.keys):
            return name, parse
    what = "the row" if source.is_json else "the header"
    raise source.wrong(source.number, BadValueError(what, source.first, f"with {_KNOWN}"))
