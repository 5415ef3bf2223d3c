"""Logs that cannot be written: nothing is raised, and lines are counted."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TextIO

import pytest
import structlog

from services.runtime.log_lines import LogLines, configure_logs
from services.runtime.logs import get_logger


class Unshowable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = before
    logging.captureWarnings(False)


def full_disk(stack: ExitStack) -> TextIO | None:
    return stack.enter_context(open("/dev/full", "w"))


def broken_pipe(stack: ExitStack) -> TextIO | None:
    reading, writing = os.pipe()
    os.close(reading)
    return stack.enter_context(os.fdopen(writing, "w"))


def closed_file(stack: ExitStack) -> TextIO | None:
    stream = broken_pipe(stack)
    assert stream is not None
    stream.close()
    return stream


def no_file(stack: ExitStack) -> TextIO | None:
    return None


@pytest.mark.parametrize("broken", [full_disk, broken_pipe, closed_file, no_file])
def test_a_line_that_cannot_be_written_is_counted(
    broken: Callable[[ExitStack], TextIO | None],
) -> None:
    with ExitStack() as stack:
        count_two(LogLines(broken(stack)))


def count_two(lines: LogLines) -> None:
    lines.write("one\n")
    lines.write("two\n")
    lines.flush()
    assert lines.num_dropped == 2


@pytest.mark.parametrize("fmt", ["json", "text"])
def test_what_cannot_be_shown_does_not_raise(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr("sys.stdout", written)
    lines = configure_logs("info", fmt, "tiny", "tiny-1")
    get_logger().error("nonsense", value="half a pair: \ud800", other=Unshowable())
    get_logger().error("nonsense", value="half a pair: \ud800")
    logging.getLogger("library").warning("half a pair: %s", "\ud800")
    shown = written.buffer.getvalue().decode()
    assert (shown.count("nonsense"), shown.count("half a pair")) == (2, 2)
    assert "cannot be shown: ZeroDivisionError" in shown
    assert lines.num_dropped == 0
    if fmt == "json":
        assert json.loads(shown.splitlines()[1])["value"] == "half a pair: \ud800"
