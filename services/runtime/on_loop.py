"""Reads of an event loop's objects by other threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from typing import TypeVar

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds that a loop may be busy: a scrape takes ten at most."""
_FRESH = 0.1
"""Seconds for which a reading is everybody's: scrapes without end cost a loop little."""


def on_loop(read: Callable[[], T], otherwise: T) -> Callable[[], T]:
    """Return ``read`` for other threads: it runs on the loop that runs now.

    It returns ``otherwise`` where the loop has ended, or is busy for longer than a scrape may take.
    Where no loop runs now it is ``read`` itself.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return read

    def read_there() -> T:
        answer: Future[T] = Future()

        def reads() -> None:
            try:
                answer.set_result(read())
            except Exception as error:
                answer.set_exception(error)

        try:
            loop.call_soon_threadsafe(reads)
        except RuntimeError:
            return otherwise
        try:
            return answer.result(_PATIENCE)
        except TimeoutError:
            return otherwise

    lock, last, read_at = threading.Lock(), otherwise, -inf

    def ask() -> T:
        nonlocal last, read_at
        if _is_running(loop):
            return read()
        with lock:
            if time.monotonic() - read_at > _FRESH:
                last, read_at = read_there(), time.monotonic()
            return last

    return ask


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this thread runs it."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
