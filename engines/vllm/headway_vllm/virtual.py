"""vLLM's own scheduler on a virtual clock: real plans of a card that is not there.

Nothing computes a model. A step takes the time that a profile gives it, and every request draws as
many tokens as it was planned with. vLLM's scheduler, block pool and prefix cache are the real
ones, and so is the plug-in's order. As on a GPU, a step is planned while the one before runs.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol

from headway.cost.pass_time import PassTime, Share
from headway_vllm.overhead import drawn_by
from headway_vllm.scheduler import StepClock
from headway_vllm.settings import SETTING
from headway_vllm.shim import engine_config, prepare_environment

BEGIN, END, PLAIN = 7, 8, 5
"""Tokens: two around the reasoning, and any other."""
EPOCH = 1e9
"""The instant at which a run begins."""
FCFS, PRIORITY = "fcfs", "priority"
"""vLLM's own orders; any other name is a batching policy of the plug-in, "" its default."""


class LoadArrival(Protocol):
    """A request of the load; lengths in tokens."""

    @property
    def at(self) -> float:
        """Seconds after the beginning."""

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""

    @property
    def reasoning(self) -> int:
        """Tokens before the answer; 0: thinking is off."""

    @property
    def answer(self) -> int:
        """Tokens of the answer."""

    @property
    def is_read(self) -> bool:
        """True if its client streams."""

    @property
    def priority(self) -> int:
        """The number that vLLM's ``priority`` order goes by, the least first."""


class Card(NamedTuple):
    """The engine: requests that run at once, its KV and chunk in tokens, and what a step costs."""

    num_places: int
    kv_tokens: int
    chunk_tokens: int
    max_model_len: int
    block_size: int
    pass_time: PassTime


class ServedVirtually(NamedTuple):
    """A request's instants after its arrival, seconds, and its preemptions."""

    ttft: float
    ttfat: float
    e2e: float
    num_preemptions: int


class VirtualRun(NamedTuple):
    """The outcome of a load."""

    served: Sequence[ServedVirtually]
    """In the order of the arrivals."""
    seconds: float
    """To the end of the last request."""
    full_tokens_per_s: float
    """Output tokens a second, as long as requests waited for a place; 0 if none did."""


class _VirtualClock(StepClock):
    def __init__(self) -> None:
        self.at = EPOCH

    def now(self) -> float:
        return self.at

    elapsed = now


def serve(
    card: Card, model: str, load: Sequence[LoadArrival], order: str, params: Mapping[str, object]
) -> VirtualRun:
    """Serve the load, ascending in time, in an order; ``params``: the policy's.

    ``model``: a folder whose files vLLM reads. The plug-in is told the tokens around the
    reasoning, which it finds by itself where there is a real model.
    """
    prepare_environment()
    return _Engine(card, load, _scheduler(card, model, order, params)).run()


class _Step(NamedTuple):
    """A planned step: vLLM's plan, its seconds, and whose tokens it draws."""

    plan: Any
    seconds: float
    drawing: Sequence[str]


class _Engine:
    """The loop around a scheduler: a step is planned while the one before runs."""

    def __init__(self, card: Card, load: Sequence[LoadArrival], scheduler: Any) -> None:
        self._card, self._load, self._scheduler = card, load, scheduler
        self._clock = scheduler.clock = _VirtualClock()
        self._requests: list[Any] = []
        self._drawn = [0] * len(load)
        self._firsts: dict[int, float] = {}
        self._answers: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._num_full, self._full_seconds = 0, 0.0

    def run(self) -> VirtualRun:
        """Serve the load to its end."""
        planned: deque[_Step] = deque()
        while len(self._ends) < len(self._load):
            self._arrive()
            step = self._plan()
            if step is not None:
                planned.append(step)
            if len(planned) > (step is not None):
                self._compute(planned.popleft())
            elif step is None:
                assert len(self._requests) < len(self._load), "whoever waits is served at last"
                self._clock.at = EPOCH + self._load[len(self._requests)].at
        served = []
        for number, each in enumerate(self._load):
            came_at, num_preemptions = EPOCH + each.at, self._requests[number].num_preemptions
            first, answer, end = self._firsts[number], self._answers[number], self._ends[number]
            times = first - came_at, answer - came_at, end - came_at
            served.append(ServedVirtually(*times, num_preemptions))
        rate = self._num_full / self._full_seconds if self._full_seconds else 0.0
        return VirtualRun(served, self._clock.at - EPOCH, rate)

    def _arrive(self) -> None:
        hasher = block_hasher(self._card.block_size)
        for number in range(len(self._requests), len(self._load)):
            if EPOCH + self._load[number].at > self._clock.at:
                return
            self._requests.append(_request(number, self._load[number], hasher))
            self._scheduler.add_request(self._requests[-1])

    def _plan(self) -> _Step | None:
        scheduler, plan = self._scheduler, self._scheduler.schedule()
        if not plan.num_scheduled_tokens:
            return None
        names = plan.num_scheduled_tokens
        drawing = [name for name in names if not scheduler.requests[name].is_prefill_chunk]
        return _Step(plan, _seconds(self._card.pass_time, plan, scheduler), drawing)

    def _compute(self, step: _Step) -> None:
        self._clock.at += step.seconds
        if len(self._scheduler.waiting):
            self._full_seconds += step.seconds
            self._num_full += len(step.drawing)
        drawn: dict[str, list[int]] = {name: [] for name in step.plan.num_scheduled_tokens}
        for name in step.drawing:
            number = int(name)
            if number not in self._ends:
                drawn[name] = [_token(self._load[number], self._drawn[number])]
        outputs = self._scheduler.update_from_output(step.plan, drawn_by(drawn))
        for out in (out for each in outputs.values() for out in each.outputs):
            if out.new_token_ids:
                self._take(int(out.request_id), out)

    def _take(self, number: int, out: Any) -> None:
        now = self._clock.at
        self._drawn[number] += len(out.new_token_ids)
        self._firsts.setdefault(number, now)
        if self._drawn[number] == self._load[number].reasoning + 1:
            self._answers[number] = now
        if out.finish_reason is not None:
            self._ends[number] = now


def _token(arrival: LoadArrival, place: int) -> int:
    """Return the output token at a place: reasoning, its end, or the answer."""
    if place >= arrival.reasoning:
        return PLAIN
    return BEGIN if place == 0 else END if place == arrival.reasoning - 1 else PLAIN


def _seconds(pass_time: PassTime, plan: Any, scheduler: Any) -> float:
    """Return the time of a step by what it computes."""
    prefill = context = batch = kv = 0
    starts = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
    cached = plan.scheduled_cached_reqs
    starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for name, count in plan.num_scheduled_tokens.items():
        start = starts[name]
        if count == 1 and not scheduler.requests[name].is_prefill_chunk:
            batch += 1
            kv += start + 1
        else:
            prefill += count
            context += count * start
    return pass_time.seconds(*Share(prefill, context, batch, kv))


def _request(number: int, arrival: LoadArrival, hasher: Any) -> Any:
    """Return vLLM's request; no two share a prompt's block."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.request import Request

    kind = RequestOutputKind.DELTA if arrival.is_read else RequestOutputKind.FINAL_ONLY
    length = arrival.reasoning + arrival.answer
    params = SamplingParams(max_tokens=length, ignore_eos=True, output_kind=kind)
    ending = [] if arrival.reasoning else [BEGIN, END]
    return Request(
        request_id=str(number),
        prompt_token_ids=[1000 + number] * (arrival.prompt - len(ending)) + ending,
        sampling_params=params,
        pooling_params=None,
        arrival_time=EPOCH + arrival.at,
        priority=arrival.priority,
        block_hasher=hasher,
    )


@cache
def block_hasher(block_size: int) -> Any:
    """Return what names the blocks of a request's tokens, as vLLM's prefix cache does."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    hash_fn = get_hash_fn_by_name("sha256")
    init_none_hash(hash_fn)
    return get_request_block_hasher(block_size, hash_fn)


@cache
def _config(card: Card, model: str, order: str) -> Any:
    given = {
        "max_num_seqs": card.num_places,
        "max_num_batched_tokens": card.chunk_tokens,
        "block_size": card.block_size,
        "max_model_len": card.max_model_len,
        "hf_overrides": {"max_position_embeddings": card.max_model_len},
        "scheduling_policy": PRIORITY if order == PRIORITY else FCFS,
        "skip_tokenizer_init": True,
        "async_scheduling": False,  # of a CPU's engine; the schedulers here are asynchronous
        "seed": 0,
    }
    config = engine_config(model, given)
    config.cache_config.num_gpu_blocks = card.kv_tokens // card.block_size + 1
    return config


def _scheduler(card: Card, model: str, order: str, params: Mapping[str, object]) -> Any:
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from headway_vllm.scheduler import HeadwayAsyncScheduler

    config = _config(card, model, order if order == PRIORITY else FCFS)
    spec = FullAttentionSpec(
        block_size=card.block_size, num_kv_heads=1, head_size=8, dtype=torch.float32
    )
    kv = KVCacheConfig(config.cache_config.num_gpu_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    is_stock = order in (FCFS, PRIORITY)
    markers = {"end_of_reasoning": [END], "start_of_reasoning": [BEGIN]}
    with _environment({} if is_stock else {"batching": order, "params": params, **markers}):
        kind: Any = AsyncScheduler if is_stock else HeadwayAsyncScheduler
        return kind(
            vllm_config=config,
            kv_cache_config=kv,
            structured_output_manager=StructuredOutputManager(config),
            block_size=card.block_size,
            log_stats=False,
        )


@contextmanager
def _environment(settings: Mapping[str, object]) -> Any:
    before = os.environ.get(SETTING)
    os.environ[SETTING] = json.dumps(settings)
    try:
        yield
    finally:
        if before is None:
            del os.environ[SETTING]
        else:
            os.environ[SETTING] = before
