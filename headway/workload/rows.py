"""Rows of CSV with a header or of JSON lines; a refusal names the file and the line."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headway.errors import Code, HeadwayError

MOST_TOKENS = 2**31
Record = Mapping[str, Any]


class BadValueError(Exception):
    """A field of a row has a value outside its limit."""

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(field)
        self.field, self.value, self.limit = field, value, limit


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a text: the ``keys`` of its first row, and the rows by line; read once.

    ``first``: the text of the line that told the keys, ``number`` which it is.
    """

    name: str
    keys: tuple[str, ...]
    first: str
    number: int
    is_json: bool
    records: Iterator[tuple[int, Record]]

    def wrong(self, number: int, bad: BadValueError) -> HeadwayError:
        """Return the refusal of a row."""
        return _refusal(self.name, number, bad.field, bad.value, bad.limit)


def read_rows(lines: Iterable[str], name: str) -> Rows:
    """Rows as they are read; HeadwayError for an empty text, later for what is no row."""
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    number, first = next(numbered, (0, ""))
    if not first:
        message = f"{name} is empty; it must have a row an arrival"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    if first.lstrip().startswith("{"):
        keys = tuple(_json_object(first, name, number))
        records = _json_records(itertools.chain([(number, first)], numbered), name)
        return Rows(name, keys, first.strip(), number, True, records)
    header = tuple(column.strip() for column in _cells(first, name, number))
    rest = _csv_records(header, numbered, name)
    return Rows(name, header, ",".join(header), number, False, rest)


def instant(record: Record, field: str, unit: str) -> float:
    """Read a finite number, 0 or more."""
    value = record.get(field)
    try:
        at = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        at = math.nan
    if not 0.0 <= at < math.inf:
        raise BadValueError(field, value, f"{unit}, 0 or more")
    return at


def tokens(record: Record, field: str, least: int = 1) -> int:
    """Read a whole number of tokens."""
    value = record.get(field)
    try:
        count = -1 if isinstance(value, bool | float) or value is None else int(value)
    except (TypeError, ValueError):
        count = -1
    if not least <= count < MOST_TOKENS:
        raise BadValueError(field, value, f"a whole number of tokens, {least} or more")
    return count


def _refusal(name: str, number: int, field: str, value: object, limit: str) -> HeadwayError:
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    message = f"{name}, line {number}: {field} is {text}; it must be {limit}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param=field)


def _json_records(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, Record]]:
    for number, line in lines:
        yield number, _json_object(line, name, number)


def _json_object(line: str, name: str, number: int) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
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


# --- files ----------------------------------------------------------------------------


def load_column(path: Path, column: str) -> list[float]:
    """A column of a CSV or of JSON lines, gzipped (.gz) or not; numbers, each 0 or more."""
    numbers: list[float] = []
    with open_text(path, "file") as lines:
        rows = read_rows(lines, str(path))
        if column not in rows.keys:
            limit = f"one of {', '.join(rows.keys)}"
            raise rows.wrong(rows.number, BadValueError("the column", column, limit))
        for number, record in rows.records:
            try:
                numbers.append(instant(record, column, "a number"))
            except BadValueError as bad:
                raise rows.wrong(number, bad) from None
    if not numbers:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{path} has a header and no rows")
    return numbers


def load_columns(
    path: Path, columns: Sequence[str], where: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """Return these columns of the rows whose other columns have the values of ``where``, tokens."""
    lengths: list[tuple[int, ...]] = []
    with open_text(path, "file") as lines:
        rows = read_rows(lines, str(path))
        for column in (*columns, *where):
            if column not in rows.keys:
                limit = f"one of {', '.join(rows.keys)}"
                raise rows.wrong(rows.number, BadValueError("the column", column, limit))
        for number, record in rows.records:
            if any(str(record.get(key)) != str(value) for key, value in where.items()):
                continue
            try:
                lengths.append(tuple(tokens(record, column, least=0) for column in columns))
            except BadValueError as bad:
                raise rows.wrong(number, bad) from None
    if not lengths:
        wanted = ", ".join(f"{key} = {value}" for key, value in where.items())
        message = f"{path} has no row" + (f" with {wanted}" if wanted else "")
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    return lengths


@contextmanager
def open_text(path: Path, param: str) -> Iterator[IO[str]]:
    """A file's lines; HeadwayError about ``param`` where it cannot be read."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                yield lines
        else:
            with path.open(encoding="utf-8") as lines:
                yield lines
    except (OSError, EOFError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param=param) from None
