"""V_P, V_N and the chunk of a convertible decoder: what a deployment does with prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headway.blocks import blocks_for
from headway.errors import Code, HeadwayError
from headway.messages import FinishedRequest
from headway.request import Request
from planning.profile.link import TIMEOUT
from planning.profile.plan import RequestSize, of_middle
from planning.profile.workers import Bench

LEAST_PROMPTS = 8
MOST_AT_A_TIME = 16
NUM_PROMPTS = 5
_LEAST_TRANSFERS = 8
_WARM_UP = 0.2  # share of a step that does not count

# --- V_P: prompts at a rising rate, until no more of their tokens are processed -------


async def lone_velocity(bench: Bench, num_input: int) -> float:
    """Tokens/s of prompts that come one after another: where a search begins."""
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(3):
        started_at = loop.time()
        (ended,) = await bench.prefiller.dispatch([bench.request(RequestSize(num_input, 1))])
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
        request = bench.request(RequestSize(length, 1))
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


# --- V_N: more and more KV on its way from prefiller to decoder at a time -------------


async def moved_per_s(bench: Bench, num_input: int, at_a_time: int) -> float:
    """Tokens/s whose KV moves, ``at_a_time`` requests together; they have been prefilled before."""
    info = bench.prefiller.info
    room = info.num_blocks // (2 * blocks_for(num_input + 2, info.block_size))
    count = max(1, min(max(_LEAST_TRANSFERS, 2 * at_a_time), room))
    requests = [bench.request(RequestSize(num_input, 2)) for _ in range(count)]
    for request in requests:
        await (await bench.prefiller.prefill(request))
    ends = [bench.decoder.ended(request.key) for request in requests]
    loop, queue = asyncio.get_running_loop(), list(requests)
    started_at = loop.time()
    await asyncio.gather(*(_send(bench, queue) for _ in range(at_a_time)))
    elapsed = loop.time() - started_at
    await asyncio.gather(*ends)
    return count * num_input / elapsed


async def _send(bench: Bench, queue: list[Request]) -> None:
    decoder = bench.decoder
    while queue:
        key = queue.pop().key
        result = await bench.prefiller.hand_off(key, decoder.info.worker_id, decoder.address)
        if not result.ok:
            message = f"KV does not reach the decoder: {result.message}"
            raise HeadwayError(Code.UNAVAILABLE, message)


# --- the chunk: prompts of rising length beside a batch that decodes ------------------


async def seconds_with_prompt(bench: Bench, num_tokens: int) -> float:
    """Measure how long readers wait for a token beside a prompt, the median of five (s).

    From one pass's tokens to those of the pass with the whole prompt in it.
    """
    gaps = []
    for _ in range(NUM_PROMPTS):
        request = bench.request(RequestSize(num_tokens, 1))
        gap = bench.front.gap(request.stream_id)
        (ended,) = await bench.decoder.dispatch([request])
        async with asyncio.timeout(TIMEOUT):
            gaps.append(await gap)
            await ended
    return of_middle(gaps)
