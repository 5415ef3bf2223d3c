"""A watchdog that ends a process whose event loop hangs, with the stacks of all its threads.

A hung process keeps its connections open, so its peers would wait. One that ends is noticed at
once, and restarted.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
from contextlib import suppress
from typing import NoReturn

from services.runtime.logs import get_logger

_STDERR = 2  # also where Python has closed its own


async def watch_event_loop(limit: float) -> NoReturn:
    """End the process when its event loop stands still for ``limit`` seconds; 0 for never.

    The timer is a thread of C without Python's lock, so that it also ends a process in which
    native code keeps that lock.
    """
    try:
        while True:
            if limit:
                faulthandler.dump_traceback_later(limit, exit=True, file=_STDERR)
            await asyncio.sleep(min(1.0, limit / 4) if limit else 3600.0)
    finally:
        faulthandler.cancel_dump_traceback_later()


def end_process(event: str, **fields: object) -> NoReturn:
    """Log the reason and the stacks of all threads, and end this process at once."""
    get_logger().error(event, **fields)
    with suppress(OSError, RuntimeError):  # it is closed
        faulthandler.dump_traceback(file=_STDERR, all_threads=True)
    os._exit(1)
