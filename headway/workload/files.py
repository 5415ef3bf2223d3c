"""Traces in files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO

from headway.errors import Code, HeadwayError
from headway.workload.traces import Trace, read_trace


def load_trace(path: Path, most_rows: int | None = None) -> Trace:
    """From a file, gzipped (.gz) or not; HeadwayError says why it cannot be read."""
    try:
        with _open_text(path) as lines:
            return read_trace(lines, str(path), most_rows=most_rows)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="trace") from None


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
