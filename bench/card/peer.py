"""transformers' continuous batching on a model of the same shape, from its own timestamps."""

from __future__ import annotations

import dataclasses
import inspect
import random
import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from bench.card.cases import Case, Shape
from bench.card.engine import network

MAX_BATCH_TOKENS = 8192
MEASURED_TOKENS = 24


class Peer:
    """One manager for all cases, so that it warms up once. ``close`` it."""

    def __init__(self, shape: Shape, device: torch.device, dtype: str) -> None:
        import transformers

        self._shape, self._rng = shape, random.Random(0)
        model = network(shape, device, dtype)
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        known = {field.name for field in dataclasses.fields(transformers.ContinuousBatchingConfig)}
        wanted: dict[str, Any] = {
            "allow_block_sharing": False,
            "max_batch_tokens": MAX_BATCH_TOKENS,
        }
        if device.type != "cuda":
            wanted |= {"num_blocks": 64, "page_size": 16, "max_batch_tokens": 128}
        config = transformers.ContinuousBatchingConfig(
            **{name: value for name, value in wanted.items() if name in known}
        )
        greedy: Any = transformers.GenerationConfig
        self._manager = model.init_continuous_batching(
            greedy(do_sample=False, eos_token_id=-1, max_new_tokens=1), config
        )
        self._manager.start()
        self.attention = str(model.config._attn_implementation)

    def run(self, case: Case, deadline: float) -> float | None:
        """Seconds of such a pass, None for a mixed one; TimeoutError past the deadline."""
        if case.kind == "mixed" or case.start:
            return None
        if case.kind == "prefill":
            found = self._generate(1, case.num_rows, 1, deadline)
            return float(median(each.timestamps[0] - each.lifespan[0] for each in found))
        num_prompts = case.num_decodes
        num_prefills = -(-num_prompts * case.context // MAX_BATCH_TOKENS)
        num_tokens = num_prefills + MEASURED_TOKENS
        found = self._generate(num_prompts, case.context - num_tokens, num_tokens, deadline)
        return decode_seconds([each.timestamps for each in found])

    def _generate(self, num: int, num_prompt: int, num_tokens: int, deadline: float) -> list[Any]:
        size = max(1, num_prompt)
        prompts = [self._rng.choices(range(self._shape.vocab_size), k=size) for _ in range(num)]
        names = self._manager.add_requests(
            prompts, max_new_tokens=num_tokens, record_timestamps=True
        )
        found: list[Any] = []
        while len(found) < len(names):
            if time.monotonic() > deadline:
                raise TimeoutError("no time left")
            result = self._manager.get_result(timeout=1.0)
            if result is not None and result.error:
                raise RuntimeError(result.error)
            if result is not None:
                found.append(result)
        return found

    def close(self) -> None:
        """Stop its thread, whatever it is at."""
        hard = "hard_stop" in inspect.signature(self._manager.stop).parameters
        self._manager.stop(block=True, timeout=10.0, **({"hard_stop": True} if hard else {}))


def decode_seconds(timestamps: list[list[float]]) -> float | None:
    """Median time between tokens while all requests decoded, None where they never did."""
    begin = max(times[0] for times in timestamps)
    end = min(times[-1] for times in timestamps)
    between = [
        late - early
        for times in timestamps
        for early, late in pairwise(times)
        if begin <= early and late <= end
    ]
    return median(between) if between else None
