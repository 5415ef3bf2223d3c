"""The warm-up of a cluster: three closed loops, which also measure what it carries."""

from __future__ import annotations

import random
from dataclasses import replace

from bench.demo.capacity import Capacity, capacity_of
from bench.demo.load import completion, mix, unread
from bench.runner.offered import looped
from bench.serve.plan import PATHS, Plan, Planned
from headway.errors import Code, HeadwayError

SECONDS = 15.0  # in which they begin
PATIENCE = 60.0  # seconds, for one answer
MOST_SECONDS = SECONDS + 20.0 + 5.0 + 3 * PATIENCE
_NUM_ALONE, _NUM_PROMPTS = 5, 48
_TYPICAL = (110, 100)  # tokens of a prompt and its output
_ALONE_SECONDS = 20.0  # in which the requests alone begin
_PROMPT_SECONDS = 5.0  # in which the prompts begin
_IN_FLIGHT = 8  # prompts


async def warm_up(
    url: str, model: str, places: int, num_requests: int, seed: int, max_tokens: int = 0
) -> Capacity:
    """Measure a cluster whose decode workers run ``places`` requests at a time.

    HeadwayError where a request fails, or where too few end to say what the cluster carries.
    """
    rng = random.Random(f"warm-up {seed}")
    in_flight = 2 * places
    one_by_one = _plan([completion(model, rng, *_TYPICAL) for _ in range(_NUM_ALONE)])
    alone = await looped(url, one_by_one, 1, _ALONE_SECONDS, PATIENCE)
    if len(alone) < 2:
        message = f"one request alone took over {_ALONE_SECONDS:g} s: too slow to be measured"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    prompts = _plan([completion(model, rng, _TYPICAL[0], 1) for _ in range(_NUM_PROMPTS)])
    read = await looped(url, prompts, _IN_FLIGHT, _PROMPT_SECONDS, PATIENCE)
    mixed = unread(mix(model, max(num_requests, 4 * in_flight), rng, max_tokens))
    return capacity_of(alone, read, await looped(url, mixed, in_flight, SECONDS, PATIENCE))


def _plan(requests: list[Planned]) -> Plan:
    indexed = [replace(one, index=place) for place, one in enumerate(requests)]
    return unread(Plan(PATHS["completions"], indexed, ()))
