"""The ledger of one endpoint: what it was sent, and how much of that it has computed by now.

The tokens that an endpoint still owes go down by what its plug-in reports of each step. A stock one
reports nothing: there they go down by its KV events, by the clock at the rate that its metrics
imply, and at the latest with the end of a response. What the scheduler's core reads of it is the
load that a worker of Headway would report.
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
    Stepped,
)
from headway.messages import FinishedRequest
from headway.request import FinishReason, Request, StreamKey

SPLIT_LAYOUT = "the endpoints' own"
"""Layout of KV that goes from one endpoint to another: their business, and alike for all."""
_SAMPLES = 32
"""Scrapes whose least seconds of a prompt token count: requests that ran together count twice."""
_ASSUMED = 5e-5
"""Seconds of a prompt token (8B on an H100) until metrics tell, as they will: who takes endpoints
for faster gives one of them all that comes meanwhile. Without metrics nothing is held on a guess.
"""
_TELLING = 32
"""Tokens of a prompt, in a scrape's mean, that tell what one takes; fewer tell of a pass."""
_SLOWEST = 2.0
"""By so much more time than the clock says may pass until KV events or steps tell of a prompt: then
it was cached, or events are lost. No event tells of one that fills no block."""


@dataclass(slots=True)
class _Held:
    """A request that was sent there; ``owed``: tokens still to be computed of its ``uncached``.

    ``number`` counts what was sent there. ``drawn_before``: what one that had always run would have
    drawn by the end of its prompt. ``fresh_in``: count of the figures that lack its blocks.
    """

    number: int
    num_tokens: int
    uncached: int
    owed: float
    sent_at: float
    dispatch_id: int
    most_output: int
    drawn_before: float | None = None
    fresh_in: int = -1


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

    ``fresh_blocks``: those that the last figures cannot have counted.
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
        self._drained_at = self._computed_at = self._through_at = self._counted_at = -inf
        self._free: int | None = None  # by the last figures
        self._num_figures = 0
        self._others = (0, 0)  # requests that run and that wait there, of nobody here
        self._outputs = OutputClock()
        self._events_at = -inf
        self._step_seconds = 0.0  # of the last step that was reported; 0 while none is
        self._size_is_reported = False
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

    def status(self, health: str, *, now: float) -> EndpointStatus:
        """Return its figures for people."""
        self._drain(now)
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
        if self._step_seconds:
            return Ends.EXACT
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
        """Note that a prompt is through since ``now``."""
        held.owed, self._computed_at = 0.0, now
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
        if sign > 0 and held.sent_at >= self._counted_at:
            held.fresh_in = self._num_figures
        if held.fresh_in == self._num_figures:
            running.fresh_blocks += blocks

    # --- what goes by -----------------------------------------------------------------

    @property
    def next_wakeup(self) -> float:
        """Instant at which the next prompt will be through by the clock; inf for none."""
        first = next(iter(self._owing.values()), None)
        if first is None:
            return inf
        since = max(self._drained_at, first.sent_at)
        return since + first.owed * self._clock_time(first) + _SLOWEST * self._step_seconds

    @property
    def has_ended(self) -> bool:
        """True while prompts are through that the next ``progress`` tells of."""
        return bool(self._through)

    def _clock_time(self, held: _Held) -> float:
        """Return the seconds that the clock gives each token of a prompt."""
        if self._step_seconds:
            return self._token_time * _SLOWEST
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
        self._through_at = self._computed_at
        self.num_passes += 1
        return PromptsThrough(ids, max(0.0, self._through_at - since))

    def _drain(self, now: float) -> None:
        """Let the clock compute what it can since it last did.

        Where steps are reported it computes nothing, unless reports stay away.
        """
        if self._step_seconds:
            if now < self.next_wakeup - 1e-9:
                return
            self._step_seconds = 0.0
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
            self._computed(held, since)

    def stored(self, num_tokens: int, *, now: float) -> None:
        """Take the tokens of blocks that a step has filled, of whichever prompts come first."""
        self._drain(now)
        self._events_at = now
        if not self._step_seconds:
            self._has_computed(num_tokens, self.block_size, now)  # no last block is full

    def _has_computed(self, num_tokens: float, unseen: float, now: float) -> None:
        """Take computed tokens; a prompt of which fewer than ``unseen`` are left is through."""
        for held in list(self._owing.values()):
            if num_tokens <= 0:
                return
            taken = min(held.owed, num_tokens)
            held.owed, num_tokens = held.owed - taken, num_tokens - taken
            if held.owed < unseen:
                self._computed(held, now)

    def stepped(self, step: Stepped, *, now: float) -> bool:
        """Take the report of a step; return whether the endpoint's size has turned out another.

        A step without a prompt's tokens, while nobody waits there and all that was sent has come,
        says that every prompt is through: it was cached.
        """
        if not step.is_complete:
            self._step_seconds = 0.0  # the clock has the word on what was lost
        self._drain(now)
        longest = _SLOWEST * self._token_time * self.info.chunk_tokens  # a longer one compiles
        self._drained_at, self._step_seconds = now, min(max(step.seconds, 1e-6), longest)
        self._has_computed(step.prefill_tokens, 1.0, now)
        has_all = step.num_running >= len(self._held) + self._others[0]
        if has_all and not step.num_waiting and not step.prefill_tokens:
            self._has_computed(inf, 1.0, now)
        if not self.info.has_metrics:
            self._others = (max(0, step.num_running + step.num_waiting - len(self._held)), 0)
            if 2 * step.prefill_tokens >= self.info.chunk_tokens:
                self._sample(step.seconds / step.prefill_tokens)
        self._free, self._counted_at = step.free_blocks, -inf
        self._num_figures += 1
        self._running.fresh_blocks = 0
        self._size_is_reported = True
        return self._has_size(step.num_blocks, step.block_size)

    def no_events(self) -> None:
        """Note that no events come: the clock alone counts."""
        self._events_at = -inf

    # --- metrics ----------------------------------------------------------------------

    def scraped(self, metrics: EndpointMetrics | None, begun_at: float, *, now: float) -> bool:
        """Take a scrape, None for none; return whether its size has turned out to be another."""
        self._drain(now)
        last, self.metrics, self._counted_at = self.metrics, metrics, begun_at
        if metrics is None:
            self._others, self._free = (0, 0), None
            self._count_again()
            return False
        self._measure(last, metrics)
        self._outputs.scraped(last, metrics, now=now)
        own = [h for h in self._held.values() if h.sent_at < begun_at]
        waiting = min(metrics.num_waiting, len(own))
        for held in own[len(own) - waiting :]:  # the clock was too fast for the last ones
            if not self._step_seconds:
                held.owed = held.owed or held.uncached
        num_owed = sum(held.owed > 0 for held in own)
        self._others = (
            max(0, metrics.num_running - (len(own) - waiting)),
            max(0, metrics.num_waiting - num_owed),
        )
        is_other = not self._size_is_reported and self._has_size(
            metrics.num_blocks, metrics.block_size
        )
        usage = min(1.0, max(0.0, metrics.kv_usage))
        self._free = int(self.num_blocks * (1.0 - usage)) if metrics.num_blocks else None
        self._count_again()
        return is_other

    def _has_size(self, num_blocks: int, block_size: int) -> bool:
        """Take its size, 0 for an unknown one; return whether it is another than before."""
        before = self.num_blocks, self.block_size
        if num_blocks:
            self.num_blocks, self.block_size = num_blocks, block_size
        return before != (self.num_blocks, self.block_size)

    def _count_again(self) -> None:
        self._num_figures += 1
        self._running = _Running()
        self._owing = {held.number: held for held in self._held.values() if held.owed > 0}
        self._through = [held for held in self._through if held.owed <= 0]
        for held in self._held.values():
            if held.owed <= 0:
                self._count(held, 1)

    def _measure(self, last: EndpointMetrics | None, metrics: EndpointMetrics) -> None:
        if not self._samples:
            self._token_time = max(self._token_time, _ASSUMED)
            last = last or EndpointMetrics()  # its whole past counts, if it has one
        if last is None:
            return
        tokens = metrics.computed_tokens - last.computed_tokens
        seconds = metrics.prefill_seconds - last.prefill_seconds
        prompts = max(1.0, metrics.num_prompts - last.num_prompts)
        if tokens >= _TELLING * prompts and 0 < seconds < inf:
            self._sample(seconds / tokens)

    def _sample(self, token_time: float) -> None:
        self._samples.append(token_time)
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
        """Return the free blocks of the last figures, less what has come since."""
        if self._free is None:
            return self.num_blocks - running.blocks
        return self._free - running.fresh_blocks

    def describe(self, info: EndpointInfo) -> None:
        """Take another description of the same address."""
        self.info = replace(info)
