"""Results as they leave: tables, JSON files, and the extra packages that plots need."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from headway.errors import Code, HeadwayError


def make_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[str] | None = None,
    **style: Any,
) -> Table:
    """Return a table without a frame; numbers stand at the right.

    ``left``: titles of the columns whose cells stand at the left; default: the first one.
    """
    table = Table(**{"box": box.SIMPLE_HEAD, "padding": (0, 1), **style})
    for title in titles:
        is_left = title in (titles[:1] if left is None else left)
        table.add_column(title, justify="left" if is_left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def titled_table(
    title: str, titles: Sequence[str], rows: Iterable[Sequence[str]], **style: Any
) -> Table:
    """Return such a table with a line of its own above it."""
    kind = {"title_justify": "left", "box": box.HEAVY_HEAD, **style}
    return make_table(titles, rows, title=title, **kind)


def make_console(width: int) -> Console:
    """Return the terminal's console; one of so many columns where output goes elsewhere."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def refuse_unwritable(file: Path) -> None:
    """Refuse a file that cannot be written (INVALID_ARGUMENT); leave it as it is."""
    existed = file.exists()
    try:
        file.open("ab").close()
        if not existed:
            file.unlink()
    except OSError as error:
        raise _cannot_write(file, error) from None


def write_json(file: Path | None, content: object, indent: int = 2) -> None:
    """Write the content to a file, if one is named; INVALID_ARGUMENT where that fails."""
    if file is None:
        return
    text = json.dumps(content, indent=indent)
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise _cannot_write(file, error) from None


def _cannot_write(file: Path, error: OSError) -> HeadwayError:
    return HeadwayError(Code.INVALID_ARGUMENT, f"cannot write {file}: {error}")


def require_extra(module: str, what: str) -> None:
    """Refuse ``what`` where the module for it is not installed; the message names the extra."""
    if find_spec(module) is None:
        message = f"{what} needs {module}: pip install 'headway[analysis]'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param=what)


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
