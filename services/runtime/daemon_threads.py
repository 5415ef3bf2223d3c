"""Threads that an exiting process does not wait for: what they call may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """At most ``most`` threads. Those of a ``ThreadPoolExecutor`` are joined as Python ends."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._num_started = 0
        self._is_shut_down = False
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call it in a thread; RuntimeError after the end. One thread submits and ends."""
        if self._is_shut_down:
            raise RuntimeError("no call begins after the shutdown")
        future: Future[T] = Future()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        if self._num_started < self._most:
            self._num_started += 1
            name = f"{self._name}-{self._num_started}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Cancel what has not begun, and let the threads end; wait for nothing."""
        self._is_shut_down = True
        try:
            while (job := self._jobs.get_nowait()) is not None:
                job[0].cancel()
        except Empty:
            pass
        for _ in range(self._num_started):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            _carry_out(*job)
            del job  # an idle thread keeps nothing alive


def _carry_out(future: Future[Any], call: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
            del future  # or the error's frame would hold it in a circle
