"""Requests for a vLLM engine whose pool makes them lose their blocks, and what stock vLLM says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.request import Request, SamplingParams
from services.worker.config import WorkerConfig

MODEL = Path(__file__).resolve().parents[2] / "models" / "headway-mini"
BLOCKS, SIZE, CHUNK = 30, 32, 128
NUM_REQUESTS, MAX_TOKENS = 8, 80


def prompt_of(number: int) -> tuple[int, ...]:
    """Prompts of 40 to 320 tokens, each its own."""
    length = 40 * (1 + (5 * number) % 8)
    return tuple(65 + (place * (number + 3)) % 50 for place in range(length))


def request_of(number: int, **sampling: Any) -> Request:
    params = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "ignore_eos": True, **sampling}
    return Request(
        request_id=f"r{number}",
        stream_id=number,
        gateway_id="g",
        gateway_address="g:1",
        model="m",
        prompt_token_ids=prompt_of(number),
        sampling=SamplingParams(**params),
        arrival_at=1.0 + number / 100,
        reasons=bool(number % 2),
    )


Steps = list[dict[str, int]]
"""The tokens of each request in each step."""


def stock_outputs(core: Any, max_tokens: int = MAX_TOKENS) -> tuple[Mapping[int, list[int]], Steps]:
    """Return the engine's outputs under its scheduler, with vLLM's own sampler, and its steps."""
    import vllm
    from vllm.v1.engine import EngineCoreRequest

    params = vllm.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    for number in range(NUM_REQUESTS):
        request = EngineCoreRequest(
            request_id=str(number),
            prompt_token_ids=list(prompt_of(number)),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(number),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        core.add_request(*core.preprocess_add_request(request))
    found: dict[int, list[int]] = {number: [] for number in range(NUM_REQUESTS)}
    steps: Steps = []
    plan = core.scheduler.schedule

    def schedule(*args: Any, **kwargs: Any) -> Any:
        output = plan(*args, **kwargs)
        steps.append(dict(output.num_scheduled_tokens))
        return output

    core.scheduler.schedule = schedule
    while core.scheduler.has_requests():
        outputs, _ = core.step_fn()
        for each in (outputs or {}).values():
            for out in each.outputs:
                found[int(out.request_id.partition("-")[0])] += out.new_token_ids
    return found, steps


def worker_config(**options: Any) -> WorkerConfig:
    """A worker's, with a pool that is too small for all of them."""
    given = {
        "service_id": "w",
        "model": str(MODEL),
        "dtype": "float32",
        "num_blocks": BLOCKS,
        "max_model_len": 512,
        "chunk_tokens": CHUNK,
        "num_threads": 1,
    }
    return WorkerConfig(**{**given, **options})
