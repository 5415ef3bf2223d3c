"""The thread that runs forward passes, so that the event loop never waits for an engine.

An engine that queues passes has two: one launches them, the other waits for their results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from headway.core.worker.events import PassFailed
from headway.core.worker.flight import work_of
from headway.cost.pass_time import Share
from headway.cost.running_fit import RunningFit
from headway.engine import Backend, PassFailure, QueueingBackend
from headway.errors import Code
from headway.forward_pass import ForwardPass, PassResult
from headway.request import StreamKey
from services.runtime.logs import get_logger
from services.runtime.machine import one_thread
from services.runtime.watchdog import end_process

_FACTOR = 10.0
"""A pass may take so many times what passes like it have taken."""
_FIRST_PASS = 300.0
"""Seconds that the first pass may take."""


class PassWatch:
    """The time that the pass under way in a thread may take, by what it computes.

    A pass-time model is fitted to the passes before it. Waits for masks are no part of either: who
    asks for a slow grammar does not make a hang tolerable for longer.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._running: tuple[Share, float] | None = None
        self._fit = RunningFit()
        self._longest = 0.0
        self._most_tokens = 1

    @contextmanager
    def running(self, work: Share) -> Iterator[None]:
        """Watch over a pass; called in its thread."""
        self._running = work, self._now()
        try:
            yield
        finally:
            self._running = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for masks inside a pass: it computes nothing meanwhile, and cannot hang."""
        running, began_at = self._running, self._now()
        self._running = None
        try:
            yield
        finally:
            if running is not None:
                self._running = running[0], running[1] + self._now() - began_at

    def took(self, seconds: float) -> None:
        """Learn from the pass under way, which has taken so long without its waits."""
        if self._running is not None:
            work = self._running[0]
            self._fit.add([work], seconds)
            self._longest = max(self._longest, seconds)
            self._most_tokens = max(self._most_tokens, work.prefill_tokens + work.batch)

    def elapsed(self) -> float:
        """Return how long the pass under way has taken so far without its waits, seconds."""
        return self._now() - self._running[1] if self._running is not None else 0.0

    def overdue(self, least: float) -> float:
        """Return for how long the pass under way has hung, seconds; 0 if it does not.

        It hangs if it takes ``least`` seconds and ten times what passes like it take. Before the
        model is fitted that is the longest pass so far, in proportion to its tokens.
        """
        running = self._running
        if running is None:
            return 0.0
        work, began_at = running
        growth = max(1.0, (work.prefill_tokens + work.batch) / self._most_tokens)
        expected = self._fit.pass_time.seconds(*work) or self._longest * growth
        limit = _FACTOR * expected if expected else _FIRST_PASS
        seconds = self._now() - began_at
        return seconds if seconds > max(least, limit) else 0.0

    async def watch(self, least: float) -> None:
        """End the process when a pass hangs, also outside Python; ``least`` 0 for never."""
        while least:
            await asyncio.sleep(least / 10)
            seconds = self.overdue(least)
            if seconds:
                end_process("forward_pass_hangs", seconds=round(seconds, 1))


class EngineThread:
    """A queue of passes; each pass's result, or failure, is posted on the event loop.

    ``least_pass_time``: seconds that each pass with requests takes at least; 0 for none. ``now``
    returns seconds that never jump.
    """

    def __init__(
        self,
        backend: Backend,
        post: Callable[[PassResult | PassFailed], None],
        least_pass_time: float = 0.0,
        *,
        thread: Callable[[str], Executor] = one_thread,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._least_pass_time = least_pass_time
        self._post = post
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._executor = thread("engine")
        self._queueing = backend if isinstance(backend, QueueingBackend) else None
        self._launcher = thread("launcher")
        self._log = get_logger()
        self._passes = PassWatch(now)

    def start(self, forward_pass: ForwardPass) -> None:
        """Queue a pass behind the one under way."""
        self._backend.expect(forward_pass)
        compute = self._computing(forward_pass)
        future = self._executor.submit(self._run, forward_pass, compute)
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._ended, forward_pass, done)
        )

    def _computing(self, forward_pass: ForwardPass) -> Callable[[], PassResult]:
        """Return what computes the pass, or waits for one that is launched beside others."""
        if self._queueing is None:
            return partial(self._backend.run, forward_pass)
        launched = self._launcher.submit(self._queueing.launch, forward_pass)
        return lambda: launched.result()()

    def _run(self, forward_pass: ForwardPass, compute: Callable[[], PassResult]) -> PassResult:
        with self._passes.running(work_of(forward_pass.items)):
            began_at = self._now()
            result = compute()
            self._passes.took(result.pass_time)
            if not self._least_pass_time or not forward_pass.items:
                return result
            time.sleep(max(0.0, began_at + self._least_pass_time - self._now()))
            return replace(result, pass_time=max(result.pass_time, self._least_pass_time))

    def overdue(self, least: float) -> float:
        """See ``PassWatch``."""
        return self._passes.overdue(least)

    def _ended(self, forward_pass: ForwardPass, done: Future[PassResult]) -> None:
        if done.cancelled():  # the worker stops
            return
        error = done.exception()
        if error is None:
            result = done.result()
            for problem in [each.problem for each in result.sampled if each.problem is not None]:
                self._log.error("no_token_drawn", problem=problem.message)
            self._post(result)
            return
        keys: tuple[StreamKey, ...] = ()
        code, message = Code.INTERNAL, f"the forward pass failed: {error}"
        if isinstance(error, PassFailure):
            keys, code = error.keys, error.code
            message = error.message if code is Code.INVALID_ARGUMENT else message
        self._log.error(
            "forward_pass_failed",
            pass_id=forward_pass.pass_id,
            num_requests=len(forward_pass.items),
            error=repr(error),
        )
        self._post(PassFailed(forward_pass.pass_id, keys, message, code))

    async def watch(self, least: float) -> None:
        """See ``PassWatch``."""
        await self._passes.watch(least)

    async def stop(self) -> None:
        """Close it in a thread: the pass in flight may take a while."""
        await asyncio.to_thread(self.close)

    def end_passes(self) -> None:
        """Wait for the pass in flight and drop the others; the engine stays open."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._launcher.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """End the passes, and close the engine."""
        self.end_passes()
        self._backend.close()
