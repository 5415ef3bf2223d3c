"""Requests for a vLLM engine whose pool makes them lose their blocks, and what stock vLLM says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

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


Heard = Callable[[str, int], None]
"""Told why an answer runs where it does, and how many tokens it has."""


async def streamed(
    client: httpx.AsyncClient, number: int, num_tokens: int, temperature: float, heard: Heard
) -> list[int]:
    """Return the tokens of a streamed answer, drawn with a seed of its own."""
    body = {
        "model": "headway-mini",
        "prompt": list(prompt_of(number)),
        "stream": True,
        "max_tokens": num_tokens,
        "temperature": temperature,
        "seed": number,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    found: list[int] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            assert '"error"' not in line, line
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    found += choice.get("token_ids") or ()
                heard(response.headers.get("x-headway-decision", ""), len(found))
    return found
