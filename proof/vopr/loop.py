"""An asyncio event loop whose clock jumps, for many processes in one thread.

A task belongs to the process in whose context it was made, and so does all that it starts. A
process that stands still keeps what happens to it for later; one that has ended hears nothing more.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")

_RESOLUTION = 1e-9
"""Timers so few seconds apart are due together."""
_MOST_STEPS = 200_000
"""Steps of the loop in one instant: more are an endless loop in somebody's code."""


class TimeStandsStill(Exception):  # noqa: N818 (it ends a history)
    """So much happens in one instant that time cannot go on."""


class ProcessLife:
    """One life of a process: whether it runs, and what waits until it does.

    A slow one takes ``drag`` seconds for each step of its event loop.
    """

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self._paused_at = 0.0
        self._pause = 0.0, 0.0
        self.drag = 0.0
        self.handler: Callable[[dict[str, Any]], None] | None = None
        """Takes errors that nobody awaits."""
        self._backlog: deque[_Step] = deque()
        self._is_draining = False

    @property
    def runs(self) -> bool:
        """True if what happens to it happens at once."""
        return self.is_alive and not (self.is_paused or self.drag or self._backlog)

    def hold(self, step: _Step) -> None:
        """Keep a step until the process runs."""
        self._backlog.append(step)
        self._drain_soon()

    def pause(self) -> None:
        """Stand still, as after SIGSTOP."""
        self.is_paused = True
        self._paused_at = self.loop.time()

    def resume(self) -> None:
        """Go on with all that has happened meanwhile."""
        self.is_paused = False
        self._pause = self._paused_at, self.loop.time()
        self._drain_soon()

    def stood_still(self, since: float) -> float:
        """Return how long it has stood still since then, in its last pause; seconds."""
        paused_at, resumed_at = self._pause
        return max(0.0, resumed_at - max(paused_at, since))

    def end(self) -> None:
        """CallEnd at once, as after SIGKILL: no line of its code runs any more."""
        self.is_alive = False

    def bury(self) -> None:
        """Let it do all that it has not lived to do: the history is over, and its tasks end."""
        self.is_alive, self.is_paused, self.drag = True, False, 0.0
        steps, self._backlog = self._backlog, deque()
        self.loop.take_up(steps)

    def _drain_soon(self) -> None:
        if self._backlog and self.is_alive and not (self._is_draining or self.is_paused):
            self._is_draining = True
            self.loop.later(self.drag, self._drain)

    def _drain(self) -> None:
        self._is_draining = False
        if not self.is_alive or self.is_paused or not self._backlog:
            return
        self._backlog.popleft().take()
        self._drain_soon()


OWNER: ContextVar[ProcessLife | None] = ContextVar("owner", default=None)
_NOBODY = Context()


def owner() -> ProcessLife:
    """Return the process whose code runs."""
    life = OWNER.get()
    assert life is not None, "this code belongs to a process"
    return life


class _Step(events.TimerHandle):
    """A callback of the loop that waits where its process does not run."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: VirtualLoop,
        context: Context | None,
    ) -> None:
        self._when = when
        self._callback: Any = callback
        self._args: Any = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._source_traceback = self._repr = None

    def cancel(self) -> None:
        """See ``asyncio``."""
        self._cancelled = True
        self._callback = self._args = None

    def take(self) -> None:
        """Run it now, unless it was cancelled meanwhile."""
        if self._cancelled:
            return
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            said = {"message": f"Exception in {self._callback!r}", "exception": error}
            self._context.run(self._loop.call_exception_handler, said)


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop that jumps to its next timer as soon as nothing is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._num_steps = 0
        self._timers: list[tuple[float, _Step]] = []
        self._steps: deque[_Step] = deque()
        self.thread_delay: Callable[[], float] = lambda: 0.0
        """Draws how long a thread takes for something short, seconds."""
        self.is_over = False
        """True once the history has ended: errors no longer count."""

    def time(self) -> float:
        """Return the seconds since the loop was made."""
        return self._now

    def later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call back after so many seconds, whatever process runs: the world does it."""
        return self.call_at(self._now + delay, callback, context=_NOBODY.copy())

    def at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call back at an instant: the world does it."""
        return self.call_at(max(when, self._now), callback, context=_NOBODY.copy())

    def take_up(self, steps: Iterable[_Step]) -> None:
        """Run these steps soon, in their order."""
        self._steps.extend(steps)

    def start(self, life: ProcessLife, coroutine: Any) -> asyncio.Task[Any]:
        """Start the first task of a process."""
        context = _NOBODY.copy()
        context.run(OWNER.set, life)
        task = self.create_task(coroutine, name=life.name, context=context)
        task.add_done_callback(partial(_tell_of_error, life), context=_NOBODY)
        return task

    # --- what asyncio asks of a loop --------------------------------------------------

    def call_at(  # type: ignore[override]  # without the types of the arguments
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See ``asyncio``."""
        timer = _Step(when, callback, args, self, context)
        heappush(self._timers, (when, timer))
        return timer

    def call_soon(  # type: ignore[override]  # without the types of the arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        """See ``asyncio``."""
        step = _Step(self._now, callback, args, self, context)
        self._steps.append(step)
        return step

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def _run_once(self) -> None:
        """Take all steps that are ready; jump to the next timer if there are none."""
        timers, steps = self._timers, self._steps
        while timers and timers[0][1]._cancelled:
            heappop(timers)
        if steps or (timers and timers[0][0] <= self._now):
            self._num_steps += 1
            if self._num_steps > _MOST_STEPS:
                raise TimeStandsStill
        else:
            assert timers, "nobody waits for anything: this history would never end"
            self._num_steps = 0
            self._now = timers[0][0]
        while timers and timers[0][0] < self._now + _RESOLUTION:
            steps.append(heappop(timers)[1])
        for _ in range(len(steps)):  # what they start waits for the next time
            step = steps.popleft()
            life = step._context.get(OWNER)
            if life is None or life.runs:
                step.take()
            elif not step._cancelled:
                life.hold(step)

    def run_in_executor(  # type: ignore[override]  # the virtual one has no threads
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Let a thread do it: it takes a while, during which others run."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self.thread_delay(), partial(_do, future, partial(func, *args)))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the process whose task or callback has failed."""
        life = OWNER.get()
        if self.is_over:
            return
        if life is not None and life.handler is not None:
            life.handler(context)
        else:
            super().call_exception_handler(context)

    async def create_server(self, *args: Any, **options: Any) -> Any:
        """Return a listener to whom nobody connects: clients of a history call gRPC."""
        return _NoListener()


def _tell_of_error(life: ProcessLife, task: asyncio.Task[Any]) -> None:
    if life.handler is not None and not task.cancelled() and (error := task.exception()):
        life.handler({"message": "its first task has ended", "exception": error})


def _do(future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    if future.cancelled():
        return
    try:
        result = work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class _NoListener:
    """The TCP listener of the HTTP edge, to which nobody connects."""

    @property
    def sockets(self) -> list[_NoListener]:
        return [self]

    def setsockopt(self, *options: int) -> None:
        """Do nothing."""

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 0

    def close(self) -> None:
        """Do nothing."""


class VirtualThread(Executor):
    """A thread that does one thing after the other; each takes ``seconds`` of its work."""

    def __init__(self, loop: VirtualLoop, seconds: Callable[[Sequence[Any]], float]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._queue: deque[tuple[Future[Any], Callable[[], Any], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        """Queue a call; it happens at the end of the time that it takes."""
        future: Future[T] = Future()
        self._queue.append((future, partial(fn, *args, **named), self._seconds(args)))
        if len(self._queue) == 1:
            self._begin()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Drop what has not ended."""
        if self._timer is not None:
            self._timer.cancel()
        while self._queue:
            self._queue.popleft()[0].cancel()

    def _begin(self) -> None:
        self._timer = self._loop.call_later(self._queue[0][2], self._finish)

    def _finish(self) -> None:
        future, work, _ = self._queue.popleft()
        if self._queue:
            self._begin()
        try:
            result = work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
