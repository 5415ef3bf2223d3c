"""transformers' continuous batching on a model of the same shape, from its own timestamps."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from bench.card.cases import Case, Shape
from bench.card.engine import network
from bench.engine.continuous import ContinuousBatching

MAX_BATCH_TOKENS = 8192
MEASURED_TOKENS = 24


class ContinuousPeer:
    """A model of the shape under continuous batching. ``close`` it."""

    def __init__(self, shape: Shape, device: torch.device, dtype: str) -> None:
        self._shape, self._rng = shape, random.Random(0)
        model = network(shape, device, dtype)
        options = {"max_batch_tokens": MAX_BATCH_TOKENS}
        if device.type != "cuda":
            options = {"num_blocks": 64, "page_size": 16, "max_batch_tokens": 128}
        self._batching = ContinuousBatching(model, **options)
        self.attention = str(model.config._attn_implementation)
        self.close = self._batching.close

    def run(self, case: Case, deadline: float) -> float | None:
        """Return the seconds of such a pass, None if mixed; TimeoutError past ``deadline``."""
        if case.kind == "mixed" or case.start:
            return None
        if case.kind == "prefill":
            generated = self._generate(1, case.num_rows, 1, deadline)
            return float(median(each.timestamps[0] - each.lifespan[0] for each in generated))
        num_prompts = case.num_decodes
        num_prefills = -(-num_prompts * case.context // MAX_BATCH_TOKENS)
        num_tokens = num_prefills + MEASURED_TOKENS
        generated = self._generate(num_prompts, case.context - num_tokens, num_tokens, deadline)
        return decode_seconds([each.timestamps for each in generated])

    def _generate(self, num: int, num_prompt: int, num_tokens: int, deadline: float) -> list[Any]:
        size = max(1, num_prompt)
        prompts = [self._rng.choices(range(self._shape.vocab_size), k=size) for _ in range(num)]
        return self._batching.generate(
            prompts, num_tokens, deadline=deadline, record_timestamps=True
        )


def decode_seconds(timestamps: list[list[float]]) -> float | None:
    """Return the median time between tokens while all requests decode, None if they never do."""
    begin = max(times[0] for times in timestamps)
    end = min(times[-1] for times in timestamps)
    between = [
        late - early
        for times in timestamps
        for early, late in pairwise(times)
        if begin <= early and late <= end
    ]
    return median(between) if between else None
