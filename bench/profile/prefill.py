"""V_P: prompts at a rising rate, until no more of their tokens are processed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.profile.plan import Kind
from bench.profile.workers import Bench
from headway.messages import FinishedRequest

LEAST_PROMPTS = 8
_WARM_UP = 0.2  # share of a step that does not count


async def lone_velocity(bench: Bench, num_input: int) -> float:
    """Tokens/s of prompts that come one after another: where a search begins."""
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(3):
        started_at = loop.time()
        (ended,) = await bench.prefiller.dispatch([bench.request(Kind(num_input, 1))])
        await ended
        times.append(loop.time() - started_at)
    return num_input / min(times)


async def prefilled_per_s(
    bench: Bench, lengths: Sequence[int], rate: float, seconds: float
) -> float:
    """Measure prompt tokens/s while ``rate`` tokens/s are offered, ``seconds`` at least.

    Prompts of the ``lengths`` come in turn, evenly. What is queued at the end is cancelled.
    """
    loop = asyncio.get_running_loop()
    ends: list[tuple[float, int]] = []
    open_ends: dict[asyncio.Future[FinishedRequest], int] = {}
    keys = {}
    started_at = due_at = loop.time()
    number = 0
    while loop.time() < started_at + seconds or len(ends) < LEAST_PROMPTS:
        length = lengths[number % len(lengths)]
        number += 1
        request = bench.request(Kind(length, 1))
        (future,) = await bench.prefiller.dispatch([request])
        open_ends[future] = length
        keys[future] = request.key

        def note(ended: asyncio.Future[FinishedRequest]) -> None:
            ends.append((loop.time(), open_ends.pop(ended)))

        future.add_done_callback(note)
        due_at += length / rate
        await asyncio.sleep(max(0.0, due_at - loop.time()))
    counted = [end for end in ends if end[0] >= started_at + _WARM_UP * seconds]
    left = list(open_ends)
    await bench.prefiller.cancel(keys[future] for future in left)
    await asyncio.gather(*left)
    return tokens_per_s(counted)


def tokens_per_s(ends: Sequence[tuple[float, int]]) -> float:
    """Return tokens/s between the first end and the last; ends as (s, tokens)."""
    if len(ends) < 2 or ends[-1][0] <= ends[0][0]:
        return 0.0
    return sum(tokens for _, tokens in ends[1:]) / (ends[-1][0] - ends[0][0])
