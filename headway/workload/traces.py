"""Recorded arrivals: Azure's and BurstGPT's CSV, Mooncake's JSON lines, plain rows of our own.

A plain row has ``arrival_at`` (s) and, each optional, ``prompt``, ``prompt_tokens`` and
``output_tokens``. A malformed row is refused with the file, the line and the value.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from headway.errors import Code, HeadwayError

MOST_TOKENS = 2**31


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One arrival; ``arrival_at`` in seconds, None for what the trace does not say.

    ``prefix_hashes``: of the prompt's blocks of 512 tokens from its beginning (Mooncake); equal
    ones hold the same tokens.
    """

    arrival_at: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prompt: str | None = None
    prefix_hashes: tuple[int, ...] = ()


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
        """The same arrivals in 1/``speed`` of the time."""
        if math.isinf(speed):
            return replace(self, rows=tuple(replace(row, arrival_at=0.0) for row in self.rows))
        moved = (replace(row, arrival_at=row.arrival_at / speed) for row in self.rows)
        return replace(self, rows=tuple(moved), step=self.step / speed)

    def spread(self, width: float, rng: random.Random) -> Trace:
        """Each arrival moved uniformly within the next ``width`` seconds: undoes a coarse clock."""
        moved = (
            replace(row, arrival_at=row.arrival_at + width * rng.random()) for row in self.rows
        )
        return replace(self, rows=_from_zero(moved), step=0.0)


def read_trace(lines: Iterable[str], name: str, *, most_rows: int | None = None) -> Trace:
    """The first ``most_rows`` rows; the format is told by the first line. INVALID_ARGUMENT else."""
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    first_number, first = next(numbered, (0, ""))
    if not first:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{name} is empty; a trace has a row an arrival")
    if first.lstrip().startswith("{"):
        records = _json_records(itertools.chain([(first_number, first)], numbered), name)
        found, parse = _json_format(first, name, first_number)
    else:
        header = [column.strip() for column in _cells(first, name, first_number)]
        records = _csv_records(header, numbered, name)
        found, parse = _csv_format(header, name)
    rows: list[TraceRow] = []
    for number, record in records:
        if most_rows is not None and len(rows) >= most_rows:
            break
        try:
            row = parse(record)
            if row is not None:
                rows.append(row)
        except _BadValueError as bad:
            raise _refusal(name, number, bad.field, bad.value, bad.limit) from None
    if not rows:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{name} has a header and no rows")
    step = _clock_step(rows) if found == "mooncake" else 0.0
    return Trace(found, _from_zero(rows), step)


def _from_zero(rows: Iterable[TraceRow]) -> tuple[TraceRow, ...]:
    ordered = sorted(rows, key=lambda row: row.arrival_at)
    start = ordered[0].arrival_at
    return tuple(replace(row, arrival_at=row.arrival_at - start) for row in ordered)


def _clock_step(rows: Sequence[TraceRow]) -> float:
    """The least gap, where arrivals coincide and none are closer than a second; else 0."""
    instants = sorted({row.arrival_at for row in rows})
    least = min((after - at for at, after in itertools.pairwise(instants)), default=0.0)
    return round(least, 1) if least >= 1.0 and len(instants) < len(rows) else 0.0


# --- rows -----------------------------------------------------------------------------

Record = Mapping[str, Any]


class _BadValueError(Exception):
    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(field)
        self.field, self.value, self.limit = field, value, limit


def _refusal(name: str, number: int, field: str, value: object, limit: str) -> HeadwayError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    message = f"{name}, line {number}: {field} is {shown}; it must be {limit}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param=field)


def _json_records(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, Record]]:
    for number, line in lines:
        yield number, _json_object(line, name, number)


def _json_object(line: str, name: str, number: int) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _refusal(name, number, "the row", line.strip(), "a JSON object")
    return record


def _cells(line: str, name: str, number: int) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise _refusal(name, number, "the row", line.strip(), f"CSV ({error})") from None


def _csv_records(
    header: Sequence[str], rest: Iterator[tuple[int, str]], name: str
) -> Iterator[tuple[int, Record]]:
    for number, line in rest:
        values = _cells(line, name, number)
        if len(values) != len(header):
            limit = f"{len(header)} values, as in the header"
            raise _refusal(name, number, "the row", line.strip(), limit)
        yield number, {key: text.strip() or None for key, text in zip(header, values, strict=True)}


Parse = Callable[[Record], TraceRow | None]
_KNOWN = (
    "TIMESTAMP,ContextTokens,GeneratedTokens (Azure), Timestamp,Request tokens,Response tokens"
    " (BurstGPT), timestamp, input_length, output_length"
    " (Mooncake) or arrival_at[, prompt][, prompt_tokens][, output_tokens]"
)


def _csv_format(header: Sequence[str], name: str) -> tuple[str, Parse]:
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(header):
        return "azure", _azure_row
    if {"Timestamp", "Request tokens", "Response tokens"} <= set(header):
        return "burstgpt", _burstgpt_row
    if "arrival_at" in header:
        return "plain", _plain_row
    raise _refusal(name, 1, "the header", ",".join(header), f"with {_KNOWN}")


def _json_format(first: str, name: str, number: int) -> tuple[str, Parse]:
    keys = set(_json_object(first, name, number))
    if {"timestamp", "input_length", "output_length"} <= keys:
        return "mooncake", _mooncake_row
    if "arrival_at" in keys:
        return "plain", _plain_row
    raise _refusal(name, number, "the row", first.strip(), f"with {_KNOWN}")


def _azure_row(record: Record) -> TraceRow:
    value = record["TIMESTAMP"]
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _BadValueError(
            "TIMESTAMP", value, "a date and time, 2023-11-16 18:15:46.68"
        ) from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return TraceRow(
        at.timestamp(), _tokens(record, "ContextTokens"), _tokens(record, "GeneratedTokens")
    )


def _burstgpt_row(record: Record) -> TraceRow | None:
    """Failed requests have no response tokens, and are left out."""
    if record.get("Response tokens") == "0":
        return None
    return TraceRow(
        _instant(record, "Timestamp", "seconds"),
        _tokens(record, "Request tokens"),
        _tokens(record, "Response tokens"),
    )


def _mooncake_row(record: Record) -> TraceRow:
    milliseconds = _instant(record, "timestamp", "milliseconds")
    hashes = record.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
        raise _BadValueError("hash_ids", hashes, "a list of whole numbers")
    return TraceRow(
        milliseconds / 1000,
        _tokens(record, "input_length"),
        _tokens(record, "output_length"),
        prefix_hashes=tuple(hashes),
    )


def _plain_row(record: Record) -> TraceRow:
    prompt = record.get("prompt")
    if prompt is not None and (not isinstance(prompt, str) or not prompt):
        raise _BadValueError("prompt", prompt, "a text of at least one character")
    prompt_tokens, output_tokens = (
        None if record.get(name) is None else _tokens(record, name)
        for name in ("prompt_tokens", "output_tokens")
    )
    at = _instant(record, "arrival_at", "seconds")
    return TraceRow(at, prompt_tokens, output_tokens, prompt)


def _instant(record: Record, field: str, unit: str) -> float:
    value = record.get(field)
    try:
        at = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        at = math.nan
    if not 0.0 <= at < math.inf:
        raise _BadValueError(field, value, f"{unit}, 0 or more")
    return at


def _tokens(record: Record, field: str) -> int:
    value = record.get(field)
    try:
        count = 0 if isinstance(value, bool | float) or value is None else int(value)
    except (TypeError, ValueError):
        count = 0
    if not 1 <= count < MOST_TOKENS:
        raise _BadValueError(field, value, "a whole number of tokens, 1 or more")
    return count
