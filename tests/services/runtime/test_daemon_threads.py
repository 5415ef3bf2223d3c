"""Threads that nobody waits for: calls and their errors, an end before they have begun, an exit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from services.runtime.daemon_threads import DaemonThreads

_HANGS = """
import threading
from services.worker import kv_nixl
threads = kv_nixl.DaemonThreads(1, "hangs")
started = threading.Event()
threads.submit(lambda: (started.set(), threading.Event().wait()))
started.wait()
threads.shutdown()
"""


async def test_calls_return_or_raise_to_who_awaits_them() -> None:
    threads, loop = DaemonThreads(2, "calls"), asyncio.get_running_loop()
    assert await loop.run_in_executor(threads, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(threads, divmod, 7, 0)
    threads.shutdown()


def test_so_many_run_and_what_has_not_begun_is_cancelled_at_the_end() -> None:
    threads, go_on = DaemonThreads(2, "calls"), threading.Event()
    running = [threads.submit(go_on.wait) for _ in range(2)]
    while not all(each.running() for each in running):
        pass
    late = threads.submit(go_on.wait)
    threads.shutdown()
    assert late.cancelled()
    go_on.set()
    assert [each.result(60) for each in running] == [True, True]


def test_no_call_begins_after_the_end() -> None:
    threads = DaemonThreads(2, "calls")
    assert threads.submit(divmod, 7, 2).result(60) == (3, 1)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="after the shutdown"):
        threads.submit(divmod, 7, 2)


def test_a_process_ends_though_a_read_hangs() -> None:
    assert subprocess.run([sys.executable, "-c", _HANGS], timeout=120, check=False).returncode == 0
