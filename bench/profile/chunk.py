"""The chunk of a convertible decoder: prompts of rising length beside a batch that decodes."""

from __future__ import annotations

import asyncio

from bench.profile.link import TIMEOUT
from bench.profile.plan import Kind, of_middle
from bench.profile.workers import Bench

NUM_PROMPTS = 5


async def seconds_with_prompt(bench: Bench, num_tokens: int) -> float:
    """Measure how long readers wait for a token beside a prompt, the median of five (s).

    From one pass's tokens to those of the pass with the whole prompt in it.
    """
    gaps = []
    for _ in range(NUM_PROMPTS):
        request = bench.request(Kind(num_tokens, 1))
        gap = bench.front.gap(request.stream_id)
        (ended,) = await bench.decoder.dispatch([request])
        async with asyncio.timeout(TIMEOUT):
            gaps.append(await gap)
            await ended
    return of_middle(gaps)
