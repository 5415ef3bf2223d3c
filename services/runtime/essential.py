"""Tasks that a process lives by: when one ends by itself, the process ends and is restarted.

The event loop's exception handler is told. A process sets ``Ending.take`` as its handler; without
it, asyncio's own handler logs the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from services.runtime.logs import get_logger

_NAME = "essential_task"


def essential(
    work: Coroutine[Any, Any, Any], name: str, *, may_return: bool = False
) -> asyncio.Task[Any]:
    """Start a task whose end, other than by ``cancel()``, ends the process.

    With ``may_return`` it may also return, but not raise.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(partial(_ended, may_return))
    return task


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and return when they have ended; None for one that has not begun."""
    given = [task for task in tasks if task is not None]
    for task in given:
        task.cancel()
    await asyncio.gather(*given, return_exceptions=True)


def _ended(may_return: bool, task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        if task.cancelling():  # on request
            return
        error: BaseException | None = asyncio.CancelledError("something that it awaited")
    else:
        error = task.exception()
        if error is None and may_return:
            return
    message = f"the task {task.get_name()!r} has ended"
    context = {"message": message, "exception": error, _NAME: task.get_name()}
    task.get_loop().call_exception_handler(context)


class Ending:
    """The end of a process: asked for by a signal, or forced by the end of an essential task."""

    def __init__(self) -> None:
        self.begins = asyncio.Event()
        self.failure = ""
        """The name of the essential task that has ended; "" for none."""

    def take(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception that nobody awaits; begin the end if an essential task has ended.

        This is the event loop's exception handler.
        """
        name, error = str(context.get(_NAME, "")), context.get("exception")
        if not name:
            get_logger().error("unexpected_error", where=context.get("message"), exc_info=error)
            return
        get_logger().error("essential_task_ended", task=name, error=repr(error), exc_info=error)
        self.failure = self.failure or name
        self.begins.set()
