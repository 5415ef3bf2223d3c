"""The ledger of one endpoint: what it was sent, and how much of that it has computed by now.

A stock endpoint does not report its forward passes. The tokens that it still owes go down by its
KV events, by the clock at the rate that its metrics imply, and at the latest with the end of a
response. What the scheduler's core reads of it is the load that a worker of Headway would report.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import inf

from headway.blocks import blocks_for
from headway.cluster import Role, UnitLoad, WorkerInfo
from headway.core.picker.events import (
    UNKNOWN_BLOCKS,
    EndpointInfo,
    EndpointMetrics,
    EndpointStatus,
    Ends,
)
from headway.messages import FinishedRequest
from headway.request import FinishReason, Request, StreamKey

SPLIT_LAYOUT = "the endpoints' own"
"""Layout of KV that goes from one endpoint to another: their business, and alike for all."""
_SAMPLES = 32
"""Scrapes whose least seconds of a prompt token count: requests that ran together count twice."""
_SLOWEST = 2.0
"""By so much more time than the clock says may pass until KV events tell of a prompt: then it was
cached, or events are lost. No event tells of one that fills no block."""


@dataclass(slots=True)
class _Held:
    """A request that was sent there; ``owed``: tokens still to be computed of its ``uncached``.

    ``number`` counts what was sent there. ``drawn_before``: what one that had always run would have
    drawn by the end of its prompt.
    """

    number: int
    num_tokens: int
    uncached: int
    owed: float
    sent_at: float
    dispatch_id: int
    most_output: int
    drawn_before: float | None = None


@dataclass(frozen=True, slots=True)
class PromptsThrough:
    """Requests and dispatches whose prompts are through since the last look."""

    dispatch_ids: tuple[int, ...]
    seconds: float
    """From the last such instant, or from the sending, to this one."""


class OutputClock:
    """The output tokens that a request draws while it runs, by an endpoint's metrics.

    Each step draws one token for every request that runs. So those of an interval, divided by the
    requests that ran in it, are one request's; since the last scrape it goes on at that rate.
    """

    def __init__(self) -> None:
        self._drawn = self._rate = 0.0
        self._at = -inf

    def scraped(
        self, last: EndpointMetrics | None, metrics: EndpointMetrics, *, now: float
    ) -> None:
        """Take the counters of two scrapes; ``last`` is None if the one before has failed."""
        tokens = metrics.output_tokens - last.output_tokens if last is not None else -1.0
        if self._at > -inf and now > self._at and last is not None and tokens >= 0:
            drawn = tokens / max(1.0, (last.num_running + metrics.num_running) / 2)
            self._drawn += drawn
            self._rate = drawn / (now - self._at)
        else:
            self._drawn = self.drawn(now=now)
        self._at = now

    def drawn(self, *, now: float) -> float:
        """Return the tokens of a request that had run since the first scrape."""
        return self._drawn + (self._rate * (now - self._at) if self._rate else 0.0)


@dataclass(slots=True)
class _Running:
    """Requests whose prompts are through: their number, tokens and KV blocks.

    ``fresh_blocks``: those that the last scrape cannot have counted.
    """

    num_requests: int = 0
    num_tokens: int = 0
    blocks: int = 0
    fresh_blocks: int = 0


class EndpointLedger:
    """One endpoint. ``first_pass``: seconds of a full chunk while nothing has been measured."""

    def __init__(self, info: EndpointInfo, first_pass: float) -> None:
        self.info = info
        self.metrics: EndpointMetrics | None = None
        self.num_blocks, self.block_size = UNKNOWN_BLOCKS, 16
        self._held: dict[StreamKey, _Held] = {}
        self._held_tokens = self._num_taken = 0
        self._owing: dict[int, _Held] = {}
        """Requests whose prompts are not through, by number."""
        self._through: list[_Held] = []
        """Requests whose prompts are through since the last look."""
        self._running = _Running()
        self._token_time = first_pass / info.chunk_tokens
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._drained_at = self._through_at = self._scraped_at = -inf
        self._others = (0, 0)  # requests that run and that wait there, of nobody here
        self._outputs = OutputClock()
        self._events_at = -inf
        self.num_passes = 0

    # --- description ------------------------------------------------------------------

    @property
    def worker(self) -> WorkerInfo:
        """The endpoint as the scheduler sees a worker of one unit.

        One that decodes prefills, too: what is not worth two endpoints runs there.
        """
        info = self.info
        return WorkerInfo(
            worker_id=info.address,
            address=info.address,
            role=Role.PREFILL if info.role is Role.PREFILL else Role.UNIFIED,
            model=info.model,
            num_units=1,
            chunk_tokens=info.chunk_tokens,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_model_len=info.max_model_len,
            kv_bytes_per_token=0,
            kv_layout="" if info.role is Role.UNIFIED else SPLIT_LAYOUT,
        )

    def status(self, health: str) -> EndpointStatus:
        """Return its figures for people."""
        return EndpointStatus(
            self.info.address,
            health,
            self.ends,
            len(self._held),
            int(self.owed_tokens),
            self._token_time,
        )

    @property
    def ends(self) -> Ends:
        """How the ends of its passes are known now."""
        return Ends.INFERRED if self._events_at > -inf else Ends.GUESSED

    @property
    def owed_tokens(self) -> float:
        """Prompt tokens that it still has to compute, those of others included."""
        own = sum([held.owed for held in self._owing.values()])
        return own + self._others[1] * self._mean_tokens

    def prompt_seconds(self, num_tokens: int) -> float:
        """Return the time that prompt tokens take here, by what has been measured."""
        return num_tokens * self._token_time

    @property
    def num_requests(self) -> int:
        """Requests that it has, those of others included."""
        return len(self._held) + sum(self._others)

    @property
    def _mean_tokens(self) -> float:
        if not self._held:
            return float(self.info.chunk_tokens)
        return self._held_tokens / len(self._held)

    # --- requests ---------------------------------------------------------------------

    def take(self, request: Request, owed: int, dispatch_id: int, *, now: float) -> None:
        """Book a request; ``owed``: its prompt tokens without those cached there."""
        self._drain(now)
        self._num_taken += 1
        most, size = request.sampling.max_tokens, request.num_tokens
        held = _Held(self._num_taken, size, owed, owed, now, dispatch_id, most)
        self._held[request.key] = self._owing[held.number] = held
        self._held_tokens += size
        if owed <= 0:
            self._computed(held, now)

    def end(self, key: StreamKey, *, now: float) -> FinishedRequest | None:
        """Forget a request that has ended; None if it has none of this key."""
        held = self._held.get(key)
        if held is None:
            return None
        self._drain(now)
        while self._owing:  # its prompt is through, and so are those that came before it
            first = next(iter(self._owing.values()))
            if first.number > held.number:
                break
            self._computed(first, now)
        del self._held[key]
        self._held_tokens -= held.num_tokens
        self._count(held, -1)
        drawn = self._outputs.drawn(now=now)
        before = drawn if held.drawn_before is None else held.drawn_before
        num_output = min(round(max(0.0, drawn - before)), held.most_output)
        return FinishedRequest(key, 0, held.num_tokens, num_output, FinishReason.STOP)

    def _computed(self, held: _Held, now: float) -> None:
        """Note that a prompt is through."""
        held.owed = 0.0
        del self._owing[held.number]
        if held.drawn_before is None:
            held.drawn_before = self._outputs.drawn(now=now)
        if held.dispatch_id:
            self._through.append(held)
        self._count(held, 1)

    def _count(self, held: _Held, sign: int) -> None:
        running, blocks = self._running, sign * blocks_for(held.num_tokens, self.block_size)
        running.num_requests += sign
        running.num_tokens += sign * held.num_tokens
        running.blocks += blocks
        if held.sent_at >= self._scraped_at:
            running.fresh_blocks += blocks

    # --- what goes by -----------------------------------------------------------------

    @property
    def next_wakeup(self) -> float:
        """Instant at which the next prompt will be through by the clock; inf for none."""
        first = next(iter(self._owing.values()), None)
        if first is None:
            return inf
        return max(self._drained_at, first.sent_at) + first.owed * self._clock_time(first)

    def _clock_time(self, held: _Held) -> float:
        """Return the seconds that the clock gives each token of a prompt."""
        is_told = self.ends is Ends.INFERRED and held.uncached >= self.block_size
        return self._token_time * (_SLOWEST if is_told else 1.0)

    def progress(self, *, now: float) -> PromptsThrough | None:
        """Return what is through since the last look, None for nothing."""
        self._drain(now)
        if not self._through:
            return None
        done, self._through = self._through, []
        since = max(self._through_at, min([held.sent_at for held in done]))
        ids = tuple([held.dispatch_id for held in done])
        for held in done:
            held.dispatch_id = 0
        self._through_at = now
        self.num_passes += 1
        return PromptsThrough(ids, max(0.0, now - since))

    def _drain(self, now: float) -> None:
        """Let the clock compute what it can since it last did."""
        since, self._drained_at = self._drained_at, max(now, self._drained_at)
        while self._owing:
            held = next(iter(self._owing.values()))
            since = max(since, held.sent_at)
            token_time = self._clock_time(held)
            needed = held.owed * token_time
            if since + needed > now + 1e-9:
                held.owed -= max(0.0, now - since) / token_time
                return
            since += needed
            self._computed(held, now)

    def stored(self, num_tokens: int, *, now: float) -> None:
        """Take the tokens of blocks that a step has filled, of whichever prompts come first."""
        self._drain(now)
        self._events_at = now
        left = float(num_tokens)
        for held in list(self._owing.values()):
            if left <= 0:
                return
            taken = min(held.owed, left)
            held.owed, left = held.owed - taken, left - taken
            if held.owed < self.block_size:  # its last block is not full
                self._computed(held, now)

    def no_events(self) -> None:
        """Note that no events come: the clock alone counts."""
        self._events_at = -inf

    # --- metrics ----------------------------------------------------------------------

    def scraped(self, metrics: EndpointMetrics | None, begun_at: float, *, now: float) -> bool:
        """Take a scrape, None for none; return whether its size has turned out to be another."""
        self._drain(now)
        last, self.metrics, self._scraped_at = self.metrics, metrics, begun_at
        if metrics is None:
            self._others = (0, 0)
            self._count_again()
            return False
        self._measure(last, metrics)
        self._outputs.scraped(last, metrics, now=now)
        own = [h for h in self._held.values() if h.sent_at < begun_at]
        waiting = min(metrics.num_waiting, len(own))
        for held in own[len(own) - waiting :]:  # the clock was too fast for the last ones
            held.owed = held.owed or held.uncached
        num_owed = sum(held.owed > 0 for held in own)
        self._others = (
            max(0, metrics.num_running - (len(own) - waiting)),
            max(0, metrics.num_waiting - num_owed),
        )
        before = self.num_blocks, self.block_size
        if metrics.num_blocks:
            self.num_blocks, self.block_size = metrics.num_blocks, metrics.block_size
        self._count_again()
        return before != (self.num_blocks, self.block_size)

    def _count_again(self) -> None:
        self._running = _Running()
        self._owing = {held.number: held for held in self._held.values() if held.owed > 0}
        self._through = [held for held in self._through if held.owed <= 0]
        for held in self._held.values():
            if held.owed <= 0:
                self._count(held, 1)

    def _measure(self, last: EndpointMetrics | None, metrics: EndpointMetrics) -> None:
        if last is None:
            return
        tokens = metrics.computed_tokens - last.computed_tokens
        seconds = metrics.prefill_seconds - last.prefill_seconds
        if tokens > 0 and 0 < seconds < inf:
            self._samples.append(seconds / tokens)
            self._token_time = min(self._samples)

    # --- the report -------------------------------------------------------------------

    def load(self) -> UnitLoad:
        """Return the load that a worker in its place would report."""
        running = self._running
        return UnitLoad(
            unit=0,
            queued_prefill_tokens=int(self.owed_tokens),
            num_running=running.num_requests + self._others[0],
            kv_tokens=running.num_tokens,
            num_free_blocks=max(0, self._free_blocks(running)),
        )

    def _free_blocks(self, running: _Running) -> int:
        """Return the free blocks of the last scrape, less what has come since."""
        if self.metrics is None or not self.metrics.num_blocks:
            return self.num_blocks - running.blocks
        free = int(self.num_blocks * (1.0 - min(1.0, max(0.0, self.metrics.kv_usage))))
        return free - running.fresh_blocks

    def describe(self, info: EndpointInfo) -> None:
        """Take another description of the same address."""
        self.info = replace(info)
