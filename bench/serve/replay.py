"""Sends a plan open loop: a request leaves at its instant whatever became of those before it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.serve.client import Client, RequestFailedError, error_text
from bench.serve.plan import Plan, Planned
from bench.serve.sse import Stream
from headway.metrics import RequestTimes

_FAILED_ENDS = ("error", "abort", "cancelled")


@dataclass(slots=True)
class ReplayedRequest:
    """The outcome of one request; instants in seconds after the start of the run."""

    planned: Planned
    sent_at: float
    ended_at: float = 0.0
    times: RequestTimes | None = None
    gaps: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    correct: bool | None = None
    error_kind: str = ""
    error: str = ""


@dataclass(slots=True)
class Tally:
    """Counts of a replay while it runs."""

    num_sent: int = 0
    num_ended: int = 0
    num_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Replay:
    """A run. ``most_open`` bounds connections: a request beyond it fails, it never waits.

    ``started_at``: by ``time.perf_counter``. ``on_end`` is told of each request's end.
    """

    def __init__(
        self,
        client: Client,
        plan: Plan,
        *,
        most_open: int,
        on_end: Callable[[ReplayedRequest], None] = lambda outcome: None,
    ) -> None:
        self._client = client
        self._plan = plan
        self._most_open = most_open
        self._on_end = on_end
        self.started_at = 0.0
        self._running: set[asyncio.Task[None]] = set()
        self.tally = Tally()
        self.outcomes: list[ReplayedRequest] = []

    async def run(self, stopping: asyncio.Event) -> float:
        """Send all, wait for their ends, return the seconds; ``stopping`` cuts it short."""
        gc.collect()
        gc.freeze()  # a full collection would stall every stream at once
        self.started_at = time.perf_counter()
        try:
            for planned in self._plan.requests:
                if await self._pause_until(planned.arrival_at, stopping):
                    break
                self._start(planned)
            await self._wait_for_the_rest(stopping)
        finally:
            gc.unfreeze()
            await self._cut_off()
        return self._now()

    async def run_closed(self, in_flight: int, seconds: float, stopping: asyncio.Event) -> None:
        """Send the requests in turn, ``in_flight`` at a time.

        None begins after ``seconds``, or once it is stopping. Arrival instants of the plan have no
        meaning here. Returns when all that were sent ended.
        """
        self.started_at = time.perf_counter()
        try:
            for planned in self._plan.requests:
                while len(self._running) >= in_flight:
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                if self._now() > seconds or stopping.is_set():
                    break
                self._start(planned)
            await asyncio.gather(*self._running)
        finally:
            await self._cut_off()

    def _now(self) -> float:
        return time.perf_counter() - self.started_at

    async def _pause_until(self, at: float, stopping: asyncio.Event) -> bool:
        """Wait, and return whether it was told to stop meanwhile."""
        pause = at - self._now()
        if pause > 0.0 and not stopping.is_set():
            try:
                async with asyncio.timeout(pause):
                    await stopping.wait()
            except TimeoutError:
                pass
        else:
            await asyncio.sleep(0)
        return stopping.is_set()

    async def _wait_for_the_rest(self, stopping: asyncio.Event) -> None:
        stopped = asyncio.create_task(stopping.wait())
        while self._running and not stopped.done():
            await asyncio.wait({stopped, *self._running}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()

    async def _cut_off(self) -> None:
        """End what still runs: nobody asks on behind a run's end, or its error."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, planned: Planned) -> None:
        outcome = ReplayedRequest(planned, self._now())
        self.outcomes.append(outcome)
        self.tally.num_sent += 1
        if len(self._running) >= self._most_open:
            self._fail(outcome, "too many open", f"{self._most_open} connections are open")
            return
        task = asyncio.create_task(self._request(outcome))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _request(self, outcome: ReplayedRequest) -> None:
        outcome.sent_at = self._now()
        try:
            await ask(self._client, self._plan.path, outcome, self.started_at, self._count)
        except RequestFailedError as error:
            self._fail(outcome, error.kind, error.detail)
        except asyncio.CancelledError:
            self._fail(outcome, "stopped", "the run was stopped")
        else:
            self._end(outcome)

    def _end(self, outcome: ReplayedRequest) -> None:
        outcome.ended_at = self._now()
        self.tally.num_ended += 1
        self._on_end(outcome)

    def _count(self, num_tokens: int) -> None:
        self.tally.num_tokens += num_tokens

    def _fail(self, outcome: ReplayedRequest, kind: str, detail: str) -> None:
        outcome.error_kind, outcome.error = kind, detail
        self.tally.errors[kind] += 1
        self._end(outcome)


async def ask(
    client: Client,
    path: str,
    outcome: ReplayedRequest,
    started_at: float,
    count: Callable[[int], None] = lambda num_tokens: None,
) -> Stream:
    """Send a planned request and fill in its outcome; RequestFailedError for no whole answer.

    ``path``: unless the request names its own. ``started_at``: of the run, by
    ``time.perf_counter``. ``count`` takes the number of tokens of each event.
    """
    planned, stream = outcome.planned, Stream()

    def take(data: bytes, now: float) -> None:
        before = len(stream.token_times)
        stream.take(data, now - started_at)
        count(len(stream.token_times) - before)

    response = await client.post(planned.path or path, planned.body, take, planned.headers)
    if response.status != 200:
        raise RequestFailedError(f"HTTP {response.status}", error_text(response.body))
    _complete(outcome, stream)
    return stream


def _complete(outcome: ReplayedRequest, stream: Stream) -> None:
    """Fill in a whole response; RequestFailedError where it is not whole."""
    times, reason = stream.token_times, stream.finish_reason
    if reason is None:
        raise RequestFailedError("cut off", "the stream ended without a finish_reason")
    if reason in _FAILED_ENDS:
        raise RequestFailedError("cut off", f"finish_reason is {reason}")
    outcome.finish_reason = reason
    outcome.prompt_tokens = stream.prompt_tokens
    outcome.cached_tokens = stream.cached_tokens
    if not times:  # tokens without text show at their end alone
        if not stream.completion_tokens:
            raise RequestFailedError("empty", f"no token came (finish_reason {reason})")
        times = [stream.finished_at]
    outcome.gaps = array("d", (after - at for at, after in itertools.pairwise(times)))
    outcome.times = RequestTimes(
        arrival_at=outcome.sent_at,
        first_token_at=times[0],
        first_answer_at=stream.first_answer_at,
        last_token_at=times[-1],
        num_output_tokens=stream.completion_tokens or len(times),
        longest_gap=max(outcome.gaps, default=0.0),
    )
    if outcome.planned.answer is not None:
        outcome.correct = stream.answer == outcome.planned.answer
