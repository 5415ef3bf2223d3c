"""Threads that read long requests: parse and tokenise, fairly between clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from headway.core.gateway.shares import Bound, Turns

T = TypeVar("T")

INLINE_BYTES = 8192  # a longer request is read in a thread: the loop stays free for tokens
_LONG_BYTES = 2**17  # about 0.1 s of a thread; longer ones never take the last one
_NUM_THREADS = 3


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[], Any]
    done: asyncio.Future[Any]


class ReadingThreads:
    """A few threads, and the jobs that wait for one; what they hold counts as buffered bytes."""

    def __init__(self, buffered: Bound) -> None:
        self.buffered = buffered
        self._turns: Turns[_Job] = Turns()
        self._num_free = _NUM_THREADS
        self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenise")

    async def run(
        self, client: str, num_bytes: int, work: Callable[[], T], *, is_long: bool = False
    ) -> T:
        """Do the work when it is the client's turn; nothing if the caller is cancelled before.

        ``is_long``: it may take long, however few its bytes. RESOURCE_EXHAUSTED where the
        client's bytes are too many.
        """
        if not self.buffered.take(client, num_bytes):
            raise self.buffered.refusal(client, num_bytes)
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future())
        self._turns.add(client, job, long=is_long or num_bytes > _LONG_BYTES)
        self._start()
        try:
            done: T = await job.done
            return done
        finally:
            job.work = _nothing  # a job in the queue holds no body of a client that has left
            self.buffered.give_back(client, num_bytes)

    def close(self) -> None:
        """Start nothing more."""
        self._num_free = 0
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while (job := self._turns.next(self._num_free)) is not None:
            if job.done.done():
                continue  # its client has left
            self._num_free -= 1
            running = asyncio.get_running_loop().run_in_executor(self._executor, job.work)
            running.add_done_callback(partial(self._finish, job))

    def _finish(self, job: _Job, ran: asyncio.Future[Any]) -> None:
        self._num_free += 1
        error = None if ran.cancelled() else ran.exception()
        if job.done.done():
            pass
        elif ran.cancelled():
            job.done.cancel()
        elif error is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(ran.result())
        self._start()


def _nothing() -> None:
    pass
