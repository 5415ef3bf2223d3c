"""vLLM's scheduler in the order of a Headway batching policy: ``--scheduler-cls``.

vLLM keeps its blocks, prefix cache, connectors, grammars and speculation, and its own ``schedule``.
Before each step the policy orders those that wait and those that run, evicts running requests for
better ones, and pauses prompts that would take the chunk from better ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from headway.cost.pass_time import Share
from headway.errors import Code, HeadwayError
from headway_vllm.admission import Adapters, FreeBlocks, kept
from headway_vllm.hints import read_hints
from headway_vllm.metrics import serve_metrics
from headway_vllm.order import PolicyOrder
from headway_vllm.phases import markers_of
from headway_vllm.settings import read_settings
from headway_vllm.shim import require_version
from headway_vllm.steps import StepEnd, StepTopic
from headway_vllm.waiting import Order, RankedWaiting

_LOG = logging.getLogger("vllm.headway")  # below vLLM's, whose handlers print it
_MOST_TRIED = 64
"""Waiting requests for which a step looks for room."""


class StepClock:
    """The time that an order goes by, seconds; a bench on virtual time has one of its own."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def elapsed(self) -> float:
        """Return seconds that never go back."""
        return time.perf_counter()


class OrderedScheduler(Scheduler):
    """A scheduler of vLLM that asks a policy first: what both schedulers share."""

    running: list[Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_version()
        super().__init__(*args, **kwargs)
        _require_fcfs(self.scheduler_config.policy)
        settings = read_settings()
        self.clock = StepClock()
        self.follow(settings.order(partial(markers_of, self.vllm_config)))
        _LOG.info("headway_vllm: %s", settings.said(self.headway))
        self.headway_seconds = 0.0
        """Seconds spent on the order so far."""
        self.headway_steps = 0
        self._is_voluntary = False
        self._planned: dict[int, tuple[float, Share]] = {}
        self._ended_at = 0.0
        self._sorted: list[Request] = []
        self._version = (-1, False)
        self._is_held_up = False
        """True if a step has computed nothing because of its pauses."""
        if settings.metrics:
            serve_metrics(self, str(settings.metrics))
        self._topic: StepTopic | None = None
        if settings.steps:
            rank = self.parallel_config.data_parallel_index
            self._topic = StepTopic(str(settings.steps), rank)

    def follow(self, order: PolicyOrder) -> None:
        """Take another order, before the first request."""

        def key_of(request: Request) -> Any:
            return order.key_of(request.request_id)

        self.headway = order
        self.waiting = RankedWaiting(lambda: order.queue.waiting, key_of)
        self.kv_holding_waiting = RankedWaiting(lambda: order.queue.waiting, key_of)

    # --- vLLM's hooks -----------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take a request into the order, and then in."""
        if not self.headway.knows(request.request_id):
            params = request.sampling_params
            extra = params.extra_args if params is not None else None
            hints = read_hints(extra, request.priority)
            prompt = request.prompt_token_ids or [0] * request.num_prompt_tokens
            name, arrived_at, now = request.request_id, request.arrival_time, self.clock.now()
            is_read = params is None or params.output_kind is not RequestOutputKind.FINAL_ONLY
            self.headway.came(
                name, prompt, request.max_tokens, hints, arrived_at, now=now, is_read=is_read
            )
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare the order, let vLLM plan the step, and note whom it serves."""
        began, now = time.perf_counter(), self.clock.now()
        order = self.headway
        order.settle(now=now)
        self._sort_running()
        limit = self._make_room(self._clear(), now)
        paused = [] if self._is_held_up else self._pause(limit)
        self.waiting.redraw(limit)
        self.kv_holding_waiting.redraw()
        self.headway_seconds += time.perf_counter() - began
        output = super().schedule(*args, **kwargs)
        began = time.perf_counter()
        self.running.extend(paused)
        self._is_held_up = bool(paused) and not output.num_scheduled_tokens
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        share = order.planned(output.num_scheduled_tokens, starts, now=now)
        self._planned[id(output)] = self.clock.elapsed(), share
        self.headway_seconds += time.perf_counter() - began
        self.headway_steps += 1
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Let vLLM take the step's tokens, and then the order."""
        ended_at = self.clock.elapsed()
        planned_at, share = self._planned.pop(id(scheduler_output), (ended_at, Share()))
        step = ended_at - max(planned_at, self._ended_at)  # an asynchronous one waits for another
        self._ended_at = ended_at
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        began, now, order = time.perf_counter(), self.clock.now(), self.headway
        drawn = [out for each in outputs.values() for out in each.outputs]
        counts = scheduler_output.num_scheduled_tokens
        counts = kept(counts, scheduler_output.scheduled_spec_decode_tokens, drawn)
        order.stepped(counts, drawn, step, now)
        order.ran(step, share)
        if self._topic is not None and counts:
            self._topic.publish(self._end_of(step, share, now))
        self.headway_seconds += time.perf_counter() - began
        return outputs

    def _end_of(self, seconds: float, share: Share, now: float) -> StepEnd:
        """Return a step's end, and what is left in the engine."""
        pool = self.kv_cache_manager.block_pool
        return StepEnd(
            ended_at=now,
            seconds=seconds,
            prefill_tokens=share.prefill_tokens,
            decode_tokens=share.batch,
            num_running=len(self.running),
            num_waiting=len(self.waiting) + len(self.kv_holding_waiting),
            free_blocks=pool.get_num_free_blocks(),
            num_blocks=pool.num_gpu_blocks,
            block_size=self.block_size,
        )

    def shutdown(self) -> None:
        """Let vLLM shut down, and close the topic."""
        super().shutdown()
        if self._topic is not None:
            self._topic.close()

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Let vLLM end requests, and forget them."""
        ended = super().finish_requests(*args, **kwargs)
        for request in ended:
            self.headway.went(request.request_id)
        return ended

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        self.headway.preempted(
            request.request_id, voluntary=self._is_voluntary, now=self.clock.now()
        )

    # --- what a policy decides beyond the order ---------------------------------------

    def _sort_running(self) -> None:
        """Put the running requests into the policy's order, if something has moved."""
        is_short = self._is_short()
        version = self.headway.queue.version, is_short
        if version == self._version and self.running == self._sorted:
            return
        names = self.headway.running(is_short=is_short)
        requests = [self.requests.get(name) for name in names]
        if set(requests) == set(self.running):
            self.running[:] = requests
        else:
            self.running.sort(key=self._place)
        self._version, self._sorted = version, list(self.running)

    def _is_short(self) -> bool:
        """Return whether the step may need more blocks than are free beside the reserve."""
        manager = self.kv_cache_manager
        most = len(self.running) + self.max_num_scheduled_tokens // self.block_size + 1
        free = manager.block_pool.get_num_free_blocks()
        return bool(free < most * manager.num_kv_cache_groups + self._reserve)

    @property
    def _reserve(self) -> int:
        """Blocks that the policy wants free ahead of need."""
        return int(self.headway.policy.reserve * self.kv_cache_manager.block_pool.num_gpu_blocks)

    def _place(self, request: Request) -> Order:
        return self.headway.place_of(request.request_id)

    def _clear(self) -> Order | None:
        """Preempt who gives way until the policy's reserve is free; return who may not pass them.

        One request always keeps its blocks.
        """
        pool, limit = self.kv_cache_manager.block_pool, None
        least = self._reserve
        while pool.get_num_free_blocks() < least and len(self.running) > 1:
            victim = self.running[-1]
            if not self.headway.gives_way(victim.request_id):
                break
            if not self._request_blocks_can_be_freed(victim):
                break
            limit = self._place(victim)
            self._evict(victim)
        return limit

    def _make_room(self, limit: Order | None, now: float) -> Order | None:
        """Preempt running requests for better ones that wait; return who may not be admitted.

        ``limit``: who may not be, because requests made room already.
        """
        if not self.headway.policy.preempts or not self.running or not len(self.waiting):
            return limit
        free, places, adapters = FreeBlocks(self), self._free_places, self._adapters()
        for place, request in islice(self.waiting.best_first(), _MOST_TRIED):
            if limit is not None and place >= limit:
                break
            if not self._may_begin(request, adapters):
                continue
            cost = free.cost(request)
            need, fits = cost.needed, cost.needed <= free.count and places > 0
            if self._reserve and self.headway.gives_way(request.request_id):
                need += self._reserve  # or it would be the next to lose its blocks
            if need <= free.count and places > 0:
                free.take(cost)
                places -= 1
                continue
            # with what it shares it needs less in the next step
            waits = cost.is_coming or now < request.arrival_time + self.headway.patience
            victims = [] if waits else self._victims(request, need - free.count, places, now)
            if not victims:  # whoever is behind it must not pass it
                behind = place if fits else (*place, 1)
                return behind if limit is None else min(limit, behind)
            before = self.kv_cache_manager.block_pool.get_num_free_blocks()
            for victim in victims:
                worst = self._place(victim)
                limit = worst if limit is None else min(limit, worst)
                self._evict(victim)
            num_freed = self.kv_cache_manager.block_pool.get_num_free_blocks() - before
            free.count += num_freed
            free.take(free.cost(request))
            places += len(victims) - 1
        return limit

    def _victims(self, request: Request, missing: int, places: int, now: float) -> list[Request]:
        """Return whom a waiting request may preempt to fit, worst first; none if it cannot."""
        victims: list[Request] = []
        for name in self.headway.yielding(request.request_id, now=now):
            victim = self.requests.get(name)
            if victim not in self.running or not self._request_blocks_can_be_freed(victim):
                continue
            victims.append(victim)
            missing -= self._own_blocks(victim)
            if missing <= 0 and places + len(victims) > 0:
                return victims
        return []

    @property
    def _free_places(self) -> int:
        """Requests that vLLM may still admit: paused sessions keep their places."""
        taken: int = len(self.running) + self.num_waiting_for_streaming_input
        most: int = self.max_num_active_reqs
        return max(0, most - taken)

    def _adapters(self) -> Adapters:
        """Return the adapters that a step has places for."""
        return Adapters(self.running, self.lora_config.max_loras if self.lora_config else 0)

    def _may_begin(self, request: Request, adapters: Adapters) -> bool:
        """Return whether vLLM would admit a waiting request that finds room."""
        return not self._is_blocked_waiting_status(request.status) and adapters.take(request)

    def _own_blocks(self, request: Request) -> int:
        """Count the blocks that come free with a request: those that no other shares."""
        groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
        return sum(block.ref_cnt == 1 and not block.is_null for group in groups for block in group)

    def _evict(self, victim: Request) -> None:
        self.running.remove(victim)
        self._is_voluntary = True
        try:
            self._preempt_request(victim, time.monotonic())
        finally:
            self._is_voluntary = False

    def _pause(self, limit: Order | None) -> list[Request]:
        """Hide running prompts that would take the chunk's tokens from better ones that wait.

        Only those that have a place, and blocks, in this step keep others from theirs.
        """
        chunks = [request for request in self.running if request.is_prefill_chunk]
        if not chunks or not len(self.waiting):
            return []
        budget = self.max_num_scheduled_tokens - (len(self.running) - len(chunks))
        adapters = self._adapters()
        both = merge(
            ((self._place(request), False, request) for request in chunks),
            ((place, True, request) for place, request in self._entering(limit)),
            key=lambda each: each[:2],
        )
        paused: list[Request] = []
        num_left = len(chunks)
        for _, waits, request in both:
            num_left -= not waits
            if waits and not num_left:
                break
            if budget <= 0 and not waits and adapters.leave(request):
                paused.append(request)
                continue
            budget -= request.num_tokens - request.num_computed_tokens
        if paused:
            names = {request.request_id for request in paused}
            self.running = [r for r in self.running if r.request_id not in names]
            self.headway.num_paused += len(paused)
        return paused

    def _entering(self, limit: Order | None) -> Iterator[tuple[Order, Request]]:
        """Yield who waits and can be admitted, best first; vLLM passes nobody who cannot."""
        free, places, adapters = FreeBlocks(self), self._free_places, self._adapters()
        for place, request in self.waiting.best_first():
            if request in self.deferred_waiting or not self._may_begin(request, adapters):
                continue
            cost = free.cost(request)
            if not places or cost.needed > free.count or (limit is not None and place >= limit):
                return
            free.take(cost)
            places -= 1
            yield place, request


def _require_fcfs(policy: str) -> None:
    """Raise HeadwayError for vLLM's own other order: it would choose victims by another rule."""
    if policy != "fcfs":
        message = (
            f"--scheduling-policy is {policy!r}, beside a scheduler of headway_vllm, which orders "
            "the requests itself: leave --scheduling-policy out (a request's priority is read as "
            "its class), or leave --scheduler-cls out"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="scheduling_policy")


class HeadwayScheduler(OrderedScheduler):
    """A scheduler that plans each step with the tokens of the one before."""


class HeadwayAsyncScheduler(OrderedScheduler, AsyncScheduler):
    """A scheduler that plans each step while the one before runs."""
