"""A step's report: written after each part, bounded in time, and plain about what is missing."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from results.output import write_json

GRACE = 30.0
"""Seconds beyond the limit after which the process ends, whatever it is doing."""
_HANGS = 3  # the exit status then


class CardReport:
    """The ``figures`` so far, and a limit on the time for all of them."""

    def __init__(self, file: Path | None, minutes: float) -> None:
        self.figures: dict[str, Any] = {"not_done": {}, "part_seconds": {}}
        self._file = file
        self._ends_at = time.monotonic() + 60 * minutes
        self._part = "start"

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the limit, 0 past it."""
        return max(0.0, self._ends_at - time.monotonic())

    @property
    def deadline(self) -> float:
        """Return the limit, by ``time.monotonic``."""
        return self._ends_at

    def add(self, name: str, value: object) -> None:
        """Add a figure and write the report."""
        self.figures[name] = value
        print(f"{name}: {json.dumps(value)}", file=sys.stderr, flush=True)
        self._write()

    def leave_out(self, name: str, why: str) -> None:
        """Name what is not measured, with the reason."""
        self.figures["not_done"][name] = why
        print(f"{name}: not done, {why}", file=sys.stderr, flush=True)
        self._write()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part. Where it fails, name it: the parts after it are measured all the same."""
        self._part, began_at = name, time.monotonic()
        try:
            yield
        except Exception as error:  # kernels, drivers and processes fail in any way
            self.leave_out(name, f"{type(error).__name__}: {error}")
        finally:
            self.figures["part_seconds"][name] = time.monotonic() - began_at
            self._write()

    def has_time(self, name: str, least: float = 0.0) -> bool:
        """Return whether more than ``least`` seconds are left; name the part where they are not."""
        if self.seconds_left > least:
            return True
        self.leave_out(name, f"no time left: it needs {least:.0f} s, {self.seconds_left:.0f} are")
        return False

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """End the process some time after the limit, also where a device never answers."""
        timer = threading.Timer(self.seconds_left + GRACE, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self.leave_out(self._part, "it did not end within the limit and was stopped")
        os._exit(_HANGS)

    def _write(self) -> None:
        """Replace the file as a whole: a reader, or a stop, never finds half of it."""
        file = self._file
        if file is None:
            return
        if file.exists() and not file.is_file():  # a pipe or a terminal
            write_json(file, self.figures)
            return
        whole = file.with_name(file.name + ".new")
        write_json(whole, self.figures)
        whole.replace(file)
