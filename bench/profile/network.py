"""V_N: more and more KV on its way from prefiller to decoder at a time."""

from __future__ import annotations

import asyncio

from bench.profile.plan import Kind
from bench.profile.workers import Bench
from headway.blocks import blocks_for
from headway.errors import Code, HeadwayError
from headway.request import Request

MOST_AT_A_TIME = 16
_LEAST_TRANSFERS = 8


async def moved_per_s(bench: Bench, num_input: int, at_a_time: int) -> float:
    """Tokens/s whose KV moves, ``at_a_time`` requests together; they have been prefilled before."""
    info = bench.prefiller.info
    room = info.num_blocks // (2 * blocks_for(num_input + 2, info.block_size))
    count = max(1, min(max(_LEAST_TRANSFERS, 2 * at_a_time), room))
    requests = [bench.request(Kind(num_input, 2)) for _ in range(count)]
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
