"""An asyncio event loop whose clock jumps, for many processes in one thread.

A task belongs to the process in whose context it was made, and so does all that it starts. A
process that stands still keeps what happens to it for later; one that has ended hears nothing more.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

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

    def resume(self) -> None:
        """Go on with all that has happened meanwhile."""
        self.is_paused = False
        self._drain_soon()

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


class _Step(events.Handle):
    """A callback of the loop that waits where its process does not run."""

    def _run(self) -> None:
        life: ProcessLife | None = self._context.get(OWNER)  # type: ignore[attr-defined]  # asyncio's own
        if life is None or life.runs:
            super()._run()
        else:
            life.hold(self)

    def take(self) -> None:
        """Run it now, unless it was cancelled meanwhile."""
        if not self._cancelled:
            super()._run()


class _TimedStep(events.TimerHandle, _Step):
    """A step at an instant."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop that jumps to its next timer as soon as nothing is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = 1e-9
        self._num_steps = 0
        self._selector: Any = self
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
        self._ready.extend(steps)  # type: ignore[attr-defined]  # asyncio's own queue

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
        timer = _TimedStep(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]  # asyncio's own heap
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> events.Handle:
        step = _Step(callback, args, self, context)
        self._ready.append(step)  # type: ignore[attr-defined]  # asyncio's own queue
        return step

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

    def select(self, timeout: float | None) -> list[Any]:
        """Jump to the next timer if nothing else is left; the loop asks itself for events."""
        if timeout == 0:
            self._num_steps += 1
            if self._num_steps > _MOST_STEPS:
                raise TimeStandsStill
            return []
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        assert timers, "nobody waits for anything: this history would never end"
        self._num_steps = 0
        self._now = max(self._now, timers[0].when())
        return []

    def _process_events(self, event_list: Sequence[Any]) -> None:
        """Do nothing: there are no sockets."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no threads."""

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
