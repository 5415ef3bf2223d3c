"""Progress of long work on standard error: what is tried, the best so far, the time left.

Nothing is shown where standard error is no terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

T = TypeVar("T")


class ProgressBar:
    """One line of work that goes on."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def tries(self, what: str) -> None:
        """Say what is tried now."""
        self._progress.update(self._task, tried=what)

    def has_best(self, what: str) -> None:
        """Say what is the best so far."""
        self._progress.update(self._task, best=f"best so far: {what}; ")

    def advance(self, num_steps: int = 1) -> None:
        """Count steps that are done."""
        self._progress.advance(self._task, num_steps)


@contextmanager
def bar(
    title: str, num_steps: int | None = None, console: Console | None = None
) -> Iterator[ProgressBar]:
    """Show a bar while the block runs; None for a number of steps that nobody knows.

    ``console``: of a test; default: standard error.
    """
    console = console or Console(stderr=True)
    steps = (MofNCompleteColumn(), TimeRemainingColumn()) if num_steps else ()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        *steps,
        TimeElapsedColumn(),
        # One column, the best first: a narrow terminal cuts its end.
        TextColumn(
            "{task.fields[best]}{task.fields[tried]}",
            markup=False,
            table_column=Column(no_wrap=True),
        ),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what goes to a file stays there
        disable=not console.is_terminal,
    )
    with progress:
        yield ProgressBar(progress, progress.add_task(title, total=num_steps, tried="", best=""))


def counted(items: Iterable[T], title: str, names: Sequence[str]) -> Iterator[T]:
    """Yield the items, one for each name, and show a bar; a name says what is waited for."""
    coming = iter(items)
    with bar(title, len(names)) as progress:
        for name in names:
            progress.tries(name)
            yield next(coming)
            progress.advance()
