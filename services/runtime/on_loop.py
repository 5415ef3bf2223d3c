"""What an event loop's objects say, for other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds that a loop may be busy: a scrape takes ten at most."""


def on_loop(read: Callable[[], T], otherwise: T) -> Callable[[], T]:
    """Return ``read`` for other threads: it runs on the loop that runs now.

    It returns ``otherwise`` where the loop has ended, or is busy for longer than a scrape may take.
    Where no loop runs now it is ``read`` itself.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return read

    def ask() -> T:
        if _is_running(loop):
            return read()
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

    return ask


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this thread runs it."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
