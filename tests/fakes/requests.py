"""A request as a worker gets it, for every test that needs one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.request import Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=5)


def a_request(
    stream_id: int, prompt: Iterable[int], sampling: SamplingParams = GREEDY, **fields: Any
) -> Request:
    """Return one of gateway g's, which comes at its number's second unless a test says when."""
    given = {
        "request_id": f"r{stream_id}",
        "gateway_id": "g",
        "gateway_address": "g:1",
        "model": "m",
        "arrival_at": float(stream_id),
        **fields,
    }
    return Request(prompt_token_ids=tuple(prompt), sampling=sampling, stream_id=stream_id, **given)
