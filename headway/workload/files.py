"""Traces and columns of numbers, in files."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headway.errors import Code, HeadwayError
from headway.workload.rows import BadValueError, instant, read_rows
from headway.workload.traces import Trace, read_trace


def load_trace(path: Path, most_rows: int | None = None) -> Trace:
    """From a file, gzipped (.gz) or not; HeadwayError says why it cannot be read."""
    with open_text(path, "trace") as lines:
        return read_trace(lines, str(path), most_rows=most_rows)


def load_column(path: Path, column: str) -> list[float]:
    """A column of a CSV or of JSON lines, gzipped (.gz) or not; numbers, each 0 or more."""
    found: list[float] = []
    with open_text(path, "file") as lines:
        rows = read_rows(lines, str(path))
        if column not in rows.keys:
            limit = f"one of {', '.join(rows.keys)}"
            raise rows.wrong(rows.number, BadValueError("the column", column, limit))
        for number, record in rows.records:
            try:
                found.append(instant(record, column, "a number"))
            except BadValueError as bad:
                raise rows.wrong(number, bad) from None
    if not found:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{path} has a header and no rows")
    return found


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
