"""The thread that runs forward passes, so that the event loop never waits for an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from headway.core.worker.events import PassFailed
from headway.engine import Backend, PassFailure
from headway.forward_pass import ForwardPass, PassResult
from services.runtime.logs import get_logger
from services.runtime.watchdog import end_process

_FACTOR = 10.0
"""A pass may take so many times the longest pass so far, in proportion to its tokens."""
_FIRST_PASS = 300.0
"""Seconds that the first pass may take."""


class EngineThread:
    """A queue of passes; each pass's result, or failure, is posted on the event loop."""

    def __init__(self, backend: Backend, post: Callable[[PassResult | PassFailed], None]) -> None:
        self._backend = backend
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, "engine")
        self._log = get_logger()
        self._running: tuple[ForwardPass, float] | None = None
        self._longest = 0.0
        self._most_tokens = 1

    def start(self, forward_pass: ForwardPass) -> None:
        """Queue a pass behind the one under way."""
        self._backend.expect(forward_pass)
        future = self._executor.submit(self._run, forward_pass)
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._ended, forward_pass, done)
        )

    def _run(self, forward_pass: ForwardPass) -> PassResult:
        began_at = time.monotonic()
        self._running = forward_pass, began_at
        try:
            return self._backend.run(forward_pass)
        finally:
            self._running = None
            self._longest = max(self._longest, time.monotonic() - began_at)
            self._most_tokens = max(self._most_tokens, _num_tokens(forward_pass))

    def overdue(self, least: float) -> float:
        """Return for how long the pass under way has hung, seconds; 0 if it does not.

        It hangs if it takes ``least`` seconds and ten times what the passes so far suggest.
        """
        running = self._running
        if running is None:
            return 0.0
        forward_pass, began_at = running
        growth = max(1.0, _num_tokens(forward_pass) / self._most_tokens)
        expected = _FACTOR * self._longest * growth if self._longest else _FIRST_PASS
        seconds = time.monotonic() - began_at
        return seconds if seconds > max(least, expected) else 0.0

    def _ended(self, forward_pass: ForwardPass, done: Future[PassResult]) -> None:
        if done.cancelled():  # the worker stops
            return
        error = done.exception()
        if error is None:
            self._post(done.result())
            return
        keys = error.keys if isinstance(error, PassFailure) else ()
        self._log.error(
            "forward_pass_failed",
            pass_id=forward_pass.pass_id,
            num_requests=len(forward_pass.items),
            error=repr(error),
        )
        self._post(
            PassFailed(forward_pass.pass_id, tuple(keys), f"the forward pass failed: {error}")
        )

    async def watch(self, least: float) -> None:
        """End the process when a pass hangs, also outside Python; ``least`` 0 for never."""
        while least:
            await asyncio.sleep(least / 10)
            seconds = self.overdue(least)
            if seconds:
                end_process("forward_pass_hangs", seconds=round(seconds, 1))

    def close(self) -> None:
        """Wait for the pass in flight, drop the others, and close the engine."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._backend.close()


def _num_tokens(forward_pass: ForwardPass) -> int:
    num_tokens = sum(len(item.token_ids) for item in forward_pass.items)
    return max(1, num_tokens * forward_pass.num_steps)
