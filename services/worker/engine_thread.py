"""The thread that runs forward passes, so that the event loop never waits for an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from headway.core.worker.events import PassFailed
from headway.engine import Backend, PassFailure
from headway.forward_pass import ForwardPass, PassResult
from services.runtime.logs import get_logger


class EngineThread:
    """A queue of passes; each pass's result, or failure, is posted on the event loop."""

    def __init__(self, backend: Backend, post: Callable[[PassResult | PassFailed], None]) -> None:
        self._backend = backend
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, "engine")
        self._log = get_logger()

    def start(self, forward_pass: ForwardPass) -> None:
        """Queue a pass behind the one under way."""
        self._backend.expect(forward_pass)
        future = self._executor.submit(self._backend.run, forward_pass)
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._ended, forward_pass, done)
        )

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

    def close(self) -> None:
        """Wait for the pass in flight, drop the others, and close the engine."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._backend.close()
