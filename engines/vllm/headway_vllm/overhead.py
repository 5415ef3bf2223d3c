"""The cost of the order in a step of vLLM's scheduler: ``python -m headway_vllm.overhead``.

vLLM's own scheduler plans real steps and takes their tokens; nothing computes a model. Each request
decodes, and those that wait find no place. Beside the seconds that the plug-in counts for itself
stands the whole step, with vLLM's own part, and the same step of stock vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from headway_vllm.settings import SETTING
from headway_vllm.shim import engine_config, prepare_environment

STOCK = "stock"
POLICIES = (STOCK, "fcfs", "uniboost", "pascal", "headway")
LOADS = ((64, 0), (256, 0), (256, 1000))
"""Requests that run, and that wait."""
PROMPT, OUTPUT, BLOCK = 32, 1984, 32
END = 7
"""The token that ends the reasoning."""


class OrderCost(NamedTuple):
    """Medians over the steps, in microseconds."""

    order: float
    """As the plug-in counts: before vLLM's plan, and after its result."""
    mean: float
    """The same, on average."""
    step: float
    """The whole step of the scheduler, vLLM's part included."""


def main() -> None:
    """Print a table of the costs, in rounds by turns."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m headway_vllm.overhead", description=__doc__
    )
    parser.add_argument("--model", default="models/headway-mini", help="whose files vLLM reads")
    parser.add_argument("--policies", default=",".join(POLICIES), help="by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="measured steps of a round")
    args = parser.parse_args()
    policies = args.policies.split(",")
    print(f"microseconds of a step; load {os.getloadavg()[0]:.1f}")
    print("policy     running waiting    order   (mean)     step")
    for running, waiting in LOADS:
        costs_of: dict[str, list[OrderCost]] = {policy: [] for policy in policies}
        for _ in range(args.rounds):
            for policy in policies:
                costs_of[policy].append(measure(args.model, policy, running, waiting, args.steps))
        for policy, costs in costs_of.items():
            order, mean, step = map(statistics.median, zip(*costs, strict=True))
            print(f"{policy:10} {running:7} {waiting:7} {order:8.0f} {mean:8.0f} {step:8.0f}")
    print(f"load {os.getloadavg()[0]:.1f}")


def measure(model: str, policy: str, running: int, waiting: int, num_steps: int) -> OrderCost:
    """Return the cost of a decode step with so many requests."""
    num_blocks = (running + 8) * (PROMPT + OUTPUT) // BLOCK
    scheduler = make_scheduler(model, policy, running, num_blocks)
    now = time.time()
    for number in range(running):
        scheduler.add_request(_request(number, now - 10_000 + number, policy))
    for _ in range(1 + running * PROMPT // 2048):
        _step(scheduler)
    for number in range(running, running + waiting):
        scheduler.add_request(_request(number, now + number / 1000, policy))
    for _ in range(100):
        _step(scheduler)
    orders, steps = [], []
    for _ in range(num_steps):
        before, began = getattr(scheduler, "headway_seconds", 0.0), time.perf_counter()
        spent = _step(scheduler)
        steps.append(time.perf_counter() - began - spent)
        orders.append(getattr(scheduler, "headway_seconds", 0.0) - before)
    assert len(scheduler.running) == running, "all of them decode"
    assert policy == STOCK or not scheduler.headway.num_voluntary, "and nobody yields"
    order, step = statistics.median(orders), statistics.median(steps)
    return OrderCost(1e6 * order, 1e6 * statistics.mean(orders), 1e6 * step)


def _step(scheduler: Any) -> float:
    """Plan a step and take a token for each request; return the seconds of the model's part."""
    plan = scheduler.schedule()
    began = time.perf_counter()
    requests, names = scheduler.requests, plan.num_scheduled_tokens
    result = drawn_by({name: [] if requests[name].is_prefill_chunk else [5] for name in names})
    spent = time.perf_counter() - began
    scheduler.update_from_output(plan, result)
    return spent


def drawn_by(tokens: Mapping[str, list[int]]) -> Any:
    """Return what vLLM's runner would: the tokens that each request of a plan has drawn."""
    from vllm.v1.outputs import ModelRunnerOutput

    places = {name: place for place, name in enumerate(tokens)}
    return ModelRunnerOutput(list(tokens), places, list(tokens.values()))


def make_scheduler(
    model: str,
    policy: str,
    num_places: int,
    num_blocks: int,
    *,
    chunk: int = 2048,
    is_ahead: bool = False,
) -> Any:
    """Return a scheduler of vLLM for so many requests, without an engine.

    ``is_ahead``: it plans a step before it has the last one's tokens.
    """
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from headway_vllm.scheduler import HeadwayAsyncScheduler, HeadwayScheduler

    options = {"max_num_seqs": num_places, "max_num_batched_tokens": chunk, "block_size": BLOCK}
    given = {"skip_tokenizer_init": True, "async_scheduling": False, "seed": 0}
    lengths = {"max_model_len": PROMPT + OUTPUT, "enable_prefix_caching": False}
    config = engine_config(model, {**options, **given, **lengths})
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    config.cache_config.num_gpu_blocks = num_blocks
    kv = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    kinds = {
        (True, True): AsyncScheduler,
        (True, False): Scheduler,
        (False, True): HeadwayAsyncScheduler,
        (False, False): HeadwayScheduler,
    }
    os.environ[SETTING] = json.dumps(
        {} if policy == STOCK else {"batching": policy, "end_of_reasoning": [END]}
    )
    try:
        return kinds[policy == STOCK, is_ahead](
            vllm_config=config,
            kv_cache_config=kv,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=False,
        )
    finally:
        del os.environ[SETTING]


def _request(number: int, arrived_at: float, policy: str) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=OUTPUT, ignore_eos=True, extra_args=_hints(policy))
    prompt = [1 + number % 50] * PROMPT
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=prompt,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrived_at,
    )


def _hints(policy: str) -> dict[str, int]:
    """Return what keeps a policy from preempting: PASCAL's answers yield to every prompt."""
    return {"headway_reasons": 1} if policy == "pascal" else {}


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_environment()
    main()
