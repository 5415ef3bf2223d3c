"""A DP unit: a decode batch as one clock, memory in tokens, prompts by arrival.

A request that decodes ends when the clock has gone as many steps as it has tokens to come. So a
step costs nothing for those whom nothing touches. Of a request that decodes, memory counts its
tokens and half a block, which is what the last block of each has free in the mean.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator
from heapq import heappop, heappush

from headway.cluster import Role, UnitId, WorkerInfo
from headway.cost.buckets import Buckets
from headway.cost.pass_time import prefill_context
from headway.cost.velocity import LimitsInForce, memory_for_prompts
from headway.policies.packing import Room
from headway.policies.placement import DecodeUnit
from headway.request import StreamKey
from headway.sim.clients import SimRequest
from headway.sim.views.load import LoadView
from headway.sim.views.memory import UnitMemory
from headway.sim.views.order import PromptOrder, Rank

_BUCKETS = Buckets()
_NOWHERE: Collection[UnitId] = ()


class ViewRequest:
    """A request, which is waiting, packable and placeable in one object.

    ``num_tokens``: prompt and output tokens as the scheduler knows them. ``expected_tokens``: of
    its output, as its gateway expects it; 0 if unknown. ``num_left``: tokens to
    compute before the next one is drawn. ``running``: whether it has memory. ``done``: its output
    tokens when it was last touched; while it decodes (``in_clock``) they grow by one with each step
    of its unit's clock, which stood at ``since``. ``served``: seconds of passes with
    it, less the instant since when, while it is in one.
    """

    __slots__ = (
        "answer_at",
        "arrival_at",
        "barred",
        "done",
        "ends_at_clock",
        "expected_tokens",
        "first_at",
        "is_burst",
        "is_in_host",
        "key",
        "left_over",
        "num_left",
        "num_prompt_tokens",
        "num_tokens",
        "predicted_total",
        "request",
        "running",
        "served",
        "since",
        "unit",
    )

    def __init__(self, request: SimRequest, number: int, expected_tokens: float) -> None:
        self.request = request
        self.expected_tokens = expected_tokens
        self.key = StreamKey("", number)
        self.arrival_at = request.arrival_at
        self.num_prompt_tokens = self.num_tokens = self.num_left = request.num_prompt_tokens
        self.is_burst = self.left_over = False
        self.running = self.is_in_host = False
        self.barred = _NOWHERE
        self.done = self.since = 0
        self.predicted_total = 0.0
        self.ends_at_clock = -1
        self.first_at = self.answer_at = self.served = 0.0
        self.unit: Unit | None = None

    @property
    def in_clock(self) -> bool:
        """True while it decodes."""
        return self.ends_at_clock >= 0

    @property
    def opens_answer(self) -> bool:
        """True if a reader waits for its first token."""
        return self.request.is_read and not self.request.num_reasoning_tokens

    @property
    def due_at(self) -> float:
        """When its class has its first token due; its arrival where it has no such promise."""
        service = self.request.standing.service
        return self.arrival_at + (service.ttft or 0.0 if service is not None else 0.0)

    @property
    def session_id(self) -> str:
        """The client's name for its conversation; "" for none."""
        return self.request.session_id

    @property
    def expected_output(self) -> float:
        """Output tokens that its gateway expects; 0 if unknown."""
        return self.expected_tokens

    @property
    def num_total(self) -> int:
        """Prompt and output tokens at its end."""
        return self.num_prompt_tokens + self.request.num_output_tokens

    @property
    def num_growth_tokens(self) -> int:
        """Tokens to reserve for growth: at least one, more if its end is expected soon."""
        if self.expected_tokens <= 0:
            return 1
        total = int(self.num_prompt_tokens + self.expected_tokens)
        return max(1, min(total - self.num_tokens, 256))

    @property
    def predicted_remaining(self) -> float:
        """Output tokens that its worker still expects; 0 if it predicts nothing."""
        return max(0.0, self.predicted_total - self.num_tokens)

    @property
    def bucket(self) -> int:
        """The bucket of its prompt and expected output."""
        return _BUCKETS.of(self.num_prompt_tokens, self.expected_tokens)


class Unit:
    """The requests of one DP unit: ``queue`` to compute, and ``batch`` that decode.

    ``kv_tokens``: the KV of those that decode, at the ``clock``. ``joined``: who decodes from the
    next step on. ``room`` and ``view`` are what packing and placement read, and count in.
    """

    def __init__(
        self,
        load: LoadView,
        info: WorkerInfo,
        unit: int,
        watermark: float,
        host_tokens: int,
        limits: LimitsInForce,
    ) -> None:
        self.load, self._limits = load, limits
        self.memory = UnitMemory(info, watermark, host_tokens)
        self.chunk_tokens, self._usual_chunk = info.pass_tokens, info.chunk_tokens
        self.clock = self.batch = self.kv_tokens = 0
        self.num_inbound = self.inbound_tokens = self._chunk_taken = self.num_preemptions = 0
        self.order: PromptOrder | None = None
        self.queue: list[tuple[Rank, StreamKey, ViewRequest]] = []
        self.joined: list[ViewRequest] = []
        self._ends: list[tuple[int, int, ViewRequest]] = []
        self.marks: list[tuple[int, int, ViewRequest]] = []
        key, blocks, size = UnitId(info.worker_id, unit), info.num_blocks, info.block_size
        self.is_convertible = info.role is Role.CONVERTIBLE
        self.room = Room(key, info.turn_tokens, blocks, int(watermark * blocks), size, empty=True)
        self.view = DecodeUnit(key, 0, 0, blocks, blocks, size, is_convertible=self.is_convertible)
        load.rooms.append(self.room)
        load.views.append(self.view)

    # --- prompts ----------------------------------------------------------------------

    def add(self, job: ViewRequest, now: float) -> None:
        """Queue a request whose tokens are to be computed here."""
        job.unit, job.running = self, False
        self.memory.pending += self.memory.footprint(job.num_tokens)
        insort(self.queue, (self._rank(job, now), job.key, job))

    def _rank(self, job: ViewRequest, now: float) -> Rank:
        if self.order is not None:
            return self.order.rank(job, now)
        # Who was swapped out decodes; on a convertible that comes before prompts.
        is_prompt = self.is_convertible and not job.is_in_host
        return (float(is_prompt), job.arrival_at)

    def serve_prompts(self, done: list[ViewRequest], now: float) -> tuple[int, int]:
        """Compute a chunk; return its tokens, and their sum over the tokens before them.

        Whose last token is among them is appended to ``done``.
        """
        if self.order is not None and self.order.is_outdated(now):
            self.queue = sorted((self._rank(job, now), key, job) for _, key, job in self.queue)
        budget = self.chunk_tokens - self.batch
        num_tokens = context = num_done = 0
        is_open = True
        for _, _, job in self.queue if budget > 0 else ():
            if not job.running:
                is_open = is_open and self._admit(job)
                if not is_open:
                    if self.order is not None:
                        raise self.order.no_memory(self.view.unit, now)
                    continue
                job.served -= now
                if job.is_in_host:
                    self._bring_back(job)
                    num_done += 1
                    continue
            left = job.num_left
            count = left if left < budget else budget
            context += prefill_context(job.num_tokens - left, count, self._usual_chunk)
            job.num_left = left - count
            num_tokens += count
            budget -= count
            if count == left:
                done.append(job)
                num_done += 1
            if not budget:
                break
        if num_done:
            self.queue = [place for place in self.queue if place[2].num_left]
        return num_tokens, context

    def _admit(self, job: ViewRequest) -> bool:
        """Give it memory for all of its tokens, if there is room."""
        memory = self.memory
        size = memory.footprint(job.num_tokens)
        if not memory.fits(size):
            return False
        memory.free -= size
        memory.pending -= size
        job.running = True
        return True

    def _bring_back(self, job: ViewRequest) -> None:
        """Swap its KV in during the pass; it decodes from the next one on."""
        memory, num_kv = self.memory, job.num_tokens - 1
        memory.free += memory.footprint(job.num_tokens)
        memory.host_free += num_kv
        memory.returning += num_kv
        job.is_in_host, job.num_left = False, 0
        self.joined.append(job)

    def release(self, job: ViewRequest) -> None:
        """Take the memory of a request that has drawn a token and does not decode here."""
        memory = self.memory
        memory.free += memory.footprint(job.num_tokens - 1)

    # --- KV from elsewhere ------------------------------------------------------------

    def reserve(self, job: ViewRequest) -> bool:
        """Take memory for a request whose KV is to come; False if there is none."""
        size = self.memory.footprint(job.num_tokens)
        if size > self.memory.free:
            return False
        self.memory.free -= size
        self.num_inbound += 1
        self.inbound_tokens += job.num_tokens
        return True

    def arrived(self, job: ViewRequest) -> None:
        """Take a request whose KV has come."""
        self.unreserve(job.num_tokens)
        job.unit = self
        self.joined.append(job)

    def unreserve(self, num_tokens: int) -> None:
        """Let go of memory for a request of so many tokens."""
        self.memory.free += self.memory.footprint(num_tokens)
        self.num_inbound -= 1
        self.inbound_tokens -= num_tokens

    # --- decoding ---------------------------------------------------------------------

    def serve_joined(self, now: float) -> None:
        """Let the newcomers decode from the present step on; they have drawn a token each."""
        clock, memory = self.clock, self.memory
        for job in self.joined:
            request, done = job.request, job.done
            job.running, job.since = True, clock
            job.served -= now
            num_kv = job.num_prompt_tokens + done - 1
            self.kv_tokens += num_kv
            memory.free -= num_kv + memory.waste
            job.ends_at_clock = clock + request.num_output_tokens - done
            heappush(self._ends, (job.ends_at_clock, job.key.stream_id, job))
            reasoning = request.num_reasoning_tokens
            if reasoning >= done:
                heappush(self.marks, (clock + reasoning + 1 - done, job.key.stream_id, job))
        self.batch += len(self.joined)
        self.joined.clear()

    def decoding(self, num_steps: int) -> Iterator[tuple[ViewRequest, int]]:
        """Yield who decodes, and the output tokens so many steps into the pass that runs."""
        at = self.clock + num_steps
        for ends_at, _, job in self._ends:
            if job.ends_at_clock == ends_at and job.unit is self:
                yield job, job.done + at - job.since
        for job in self.joined:
            yield job, job.done

    def leave(self, job: ViewRequest) -> None:
        """Let it decode no more; it keeps its memory until its KV has gone."""
        self._rest(job)
        job.num_tokens = job.num_prompt_tokens + job.done
        self.memory.free -= self.memory.footprint(job.num_tokens - 1)

    def _rest(self, job: ViewRequest) -> None:
        """Let it decode no more; it keeps no memory."""
        memory = self.memory
        job.done += self.clock - job.since
        job.ends_at_clock = -1
        num_kv = job.num_prompt_tokens + job.done - 1
        self.batch -= 1
        self.kv_tokens -= num_kv
        memory.free += num_kv + memory.waste

    def steps_left(self, most: int) -> int:
        """Return the steps until somebody ends or has reasoned; no more than memory lasts."""
        ends, clock = self._ends, self.clock
        while ends[0][2].ends_at_clock != ends[0][0] or ends[0][2].unit is not self:
            heappop(ends)  # it has left since
        if ends[0][0] - clock < most:
            most = ends[0][0] - clock
        if self.marks and 0 < self.marks[0][0] - 1 - clock < most:
            most = self.marks[0][0] - 1 - clock
        if most * self.batch > self.memory.free:
            most = max(1, self.memory.free // self.batch)
        return most

    def advance(self, num_steps: int) -> list[ViewRequest]:
        """Go so many steps; return those that have ended, who have left."""
        self.clock = clock = self.clock + num_steps
        grown = num_steps * self.batch
        self.kv_tokens += grown
        self.memory.free -= grown
        ended: list[ViewRequest] = []
        ends = self._ends
        while ends and ends[0][0] <= clock:
            at, _, job = heappop(ends)
            if job.ends_at_clock == at and job.unit is self:
                self._rest(job)
                ended.append(job)
        return ended

    def reached(self, num_steps: int) -> list[tuple[ViewRequest, int]]:
        """Return who draws the first answering token within so many steps, and in which one."""
        draws, marks, clock = list[tuple[ViewRequest, int]](), self.marks, self.clock
        while marks and marks[0][0] <= clock + num_steps:
            at, _, job = heappop(marks)
            if job.unit is not self or not job.in_clock:
                continue
            if job.since + job.request.num_reasoning_tokens + 1 - job.done == at:
                draws.append((job, at - clock))
        return draws

    @property
    def has_reasoned(self) -> bool:
        """True if somebody's next token is the first of the answer: that is reported."""
        return bool(self.marks) and self.marks[0][0] - 1 == self.clock

    def is_short(self) -> bool:
        """Return whether somebody who decodes has to lose memory."""
        free, order = self.memory.free, self.order
        return self.batch > free or (
            order is not None and self.batch > 1 and free < order.least_free(self.memory.capacity)
        )

    def make_room(self, now: float) -> int:
        """Preempt the last to come until each has room for a token; return how many decode."""
        if self.order is not None:
            raise self.order.no_memory(self.view.unit, now)
        while self.batch > 1 and self.memory.free < self.batch:
            running = (job for job, _ in self.decoding(0))
            self._preempt(max(running, key=lambda job: (job.arrival_at, job.key)), now)
        return self.batch

    def _preempt(self, job: ViewRequest, now: float) -> None:
        """Take its memory; its KV goes to host memory, or is to be computed again."""
        self._rest(job)
        self.num_preemptions += 1
        job.num_tokens = job.num_left = job.num_prompt_tokens + job.done
        memory, num_kv = self.memory, job.num_tokens - 1
        if num_kv <= memory.host_free:
            memory.host_free -= num_kv
            memory.leaving += num_kv
            job.is_in_host, job.num_left = True, 1
        self.room.capacity -= job.num_left
        self.load.queued_tokens += job.num_left
        self.add(job, now)

    # --- what the scheduler knows -----------------------------------------------------

    def refresh(self, num_steps: int = 0) -> None:
        """Report the load, so many steps into the pass that runs, and who is on the way."""
        room, view, memory = self.room, self.view, self.memory
        view.ahead = None
        grown, inbound = num_steps * self.batch, self.inbound_tokens
        num_free = (memory.free - grown - memory.pending) // memory.block_size
        room.num_free_blocks = view.num_free_blocks = num_free
        room.empty = num_free >= view.num_blocks
        view.num_requests = self.batch + len(self.joined) + self.num_inbound
        view.kv_tokens = self.kv_tokens + grown + inbound
        for job in self.joined:
            view.kv_tokens += job.num_tokens - 1
        if self.queue or view.waiting_tokens:
            view.waiting_tokens = sum(job.num_tokens for _, _, job in self.queue if job.done)
        if self.is_convertible:
            self._keep_chunk()

    def _keep_chunk(self) -> None:
        """Note what decoding takes of a convertible's chunk, and what prompts need of its memory.

        TokenScale, equations 5 and 6.
        """
        self.room.capacity += self._chunk_taken - self.batch
        self._chunk_taken = self.batch
        chunk = min(self.chunk_tokens, self._usual_chunk)
        capacity, limits = self.memory.capacity, self._limits.now
        self.view.reserved_tokens = memory_for_prompts(chunk, self.batch, capacity, limits)
