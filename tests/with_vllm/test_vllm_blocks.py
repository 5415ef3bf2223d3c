"""Blocks as vLLM counts them: our admission beside its own, on drawn states of its pool."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import pytest

from tests.fakes.vllm_rig import MODEL

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.admission import FreeBlocks
from headway_vllm.overhead import drawn_by
from headway_vllm.settings import SETTING
from headway_vllm.shim import engine_config
from headway_vllm.virtual import block_hasher

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

SIZE, WINDOW, PLACES = 16, 40, 64


@cache
def config() -> Any:
    given = {"max_num_seqs": PLACES, "max_num_batched_tokens": 8192, "block_size": SIZE}
    options = {"skip_tokenizer_init": True, "async_scheduling": False, "max_model_len": 2000}
    found = engine_config(str(MODEL), given | options)
    found.cache_config.num_gpu_blocks = 1  # each scheduler's pool has its own number
    return found


def scheduler_of(kind: type, num_blocks: int, *, windows: bool) -> Any:
    """Return a scheduler over a pool; ``windows``: half of the layers keep a window alone."""
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    sizes = {"block_size": SIZE, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(**sizes))]
    if windows:
        window = SlidingWindowSpec(**sizes, sliding_window=WINDOW)
        groups.append(KVCacheGroupSpec(["window"], window))
    return kind(
        vllm_config=config(),
        kv_cache_config=KVCacheConfig(num_blocks, [], groups),
        structured_output_manager=StructuredOutputManager(config()),
        block_size=SIZE,
        log_stats=False,
    )


def request(number: int, random: Random) -> Any:
    """Return a request; its prompt begins as those of its family do."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    family, shared = random.randrange(3), random.randrange(0, 8) * SIZE
    own = random.randrange(1, 80)
    return Request(
        request_id=str(number),
        prompt_token_ids=[family + 1] * shared + [100 + number] * own,
        sampling_params=SamplingParams(max_tokens=1000, ignore_eos=True),
        pooling_params=None,
        arrival_time=1000.0 + number,
        block_hasher=block_hasher(SIZE),
    )


def step(scheduler: Any) -> Any:
    """Plan a step and draw its tokens."""
    plan = scheduler.schedule()
    drawn = drawn_by({name: [5] for name in plan.num_scheduled_tokens})
    scheduler.update_from_output(plan, drawn)
    return plan


def fill(scheduler: Any, random: Random) -> int:
    """Serve, abort and preempt some requests; the running ones then need nothing for a step."""
    from vllm.v1.request import RequestStatus

    number = 0
    for _ in range(random.randrange(1, 5)):
        for _ in range(random.randrange(0, 3)):
            number += 1
            scheduler.add_request(request(number, random))
        for _ in range(random.randrange(1, 20)):
            step(scheduler)
        for each in list(scheduler.running):
            if random.random() < 0.3:
                name = each.request_id
                scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            elif random.random() < 0.15:
                scheduler.running.remove(each)
                scheduler._preempt_request(each, 0.0)
    while any(each.num_computed_tokens < each.num_tokens for each in scheduler.running):
        scheduler.schedule()
    return number


def check(seed: int) -> tuple[int, int]:
    """Compare one drawn state; return how many were admitted, and how many tried."""
    from vllm.v1.core.sched.scheduler import Scheduler

    random = Random(seed)
    scheduler = scheduler_of(Scheduler, random.randrange(30, 120), windows=random.random() < 0.4)
    number = fill(scheduler, random)
    scheduler.scheduler_reserve_full_isl = random.random() < 0.7
    scheduler.kv_cache_manager.watermark_blocks = random.choice((0, 0, 3))
    for _ in range(random.randrange(1, 5)):
        number += 1
        scheduler.add_request(request(number, random))
    free, expected, is_exact = FreeBlocks(scheduler), list[str](), True
    waiting = list(scheduler.waiting)
    for each in waiting:
        cost = free.cost(each)
        if cost.is_coming or (expected and cost.touched):
            is_exact = False  # it shares what another fills, or evicts, in this very step
            break
        if cost.needed > free.count:
            break
        free.take(cost)
        expected.append(each.request_id)
        if not scheduler.running:  # the watermark counts from the second on
            break
    before = {each.request_id for each in scheduler.running}
    scheduler.schedule()
    admitted = [each.request_id for each in scheduler.running if each.request_id not in before]
    assert admitted[: len(expected)] == expected, seed
    if is_exact and before:
        assert admitted == expected, seed
        left = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        assert left == free.count, seed
    return len(expected), len(waiting)


def check_all(seeds: range) -> None:
    counts = [check(seed) for seed in seeds]
    num_admitted, num_tried = map(sum, zip(*counts, strict=True))
    assert 0.2 * num_tried < num_admitted < 0.95 * num_tried, "both answers are drawn"


def test_who_fits_and_what_is_left_is_as_vllm_counts_it() -> None:
    check_all(range(300))


@pytest.mark.slow
def test_who_fits_is_as_vllm_counts_it_in_ten_thousand_states() -> None:
    check_all(range(1000, 11_000))


@pytest.mark.parametrize("policy", ["uniboost", "headway", "pascal"])
def test_nobody_is_preempted_for_a_prompt_that_is_cached(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    from headway_vllm.scheduler import HeadwayScheduler

    given: dict[str, Any] = {"batching": policy, "end_of_reasoning": [8], "start_of_reasoning": [7]}
    if policy == "headway":
        given["params"] = {"long_tokens": 1, "reserve": 0.0}
    monkeypatch.setenv(SETTING, json.dumps(given))
    scheduler = scheduler_of(HeadwayScheduler, 41, windows=False)

    def add(name: str, prompt: list[int]) -> None:
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                arrival_time=1000.0 + len(scheduler.requests),
                block_hasher=block_hasher(SIZE),
            )
        )

    add("long", [1] * 19 * SIZE + [2])  # 20 of 40 blocks
    step(scheduler)
    step(scheduler)
    add("first", [3] * 15 * SIZE + [7, 8])  # 16 blocks, so 4 are free
    step(scheduler)
    add("second", [3] * 15 * SIZE + [4, 7, 8])  # one block more
    step(scheduler)
    assert {each.request_id for each in scheduler.running} == {"long", "first", "second"}
    assert scheduler.headway.num_voluntary == scheduler.headway.num_forced == 0
