"""More than a cluster can take: some are told when to come again, and then everybody is served."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.fakes.local_cluster import LocalCluster

pytestmark = [
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]

NUM_TOKENS = 4
FLAGS = ("--prefill", "0", "--decode", "0", "--unified", "1")
ENVIRONMENT = {"HEADWAY_FLOW_CONTROL_CYCLES": "1"}


def body(number: int) -> dict[str, object]:
    """A long prompt that begins like no other: its prefill takes several passes."""
    numbers = [number % 90 + 10, number // 90 + 10, *(n % 90 + 10 for n in range(250))]
    return {
        "model": "headway-mini",
        "messages": [{"role": "user", "content": f"Sort {', '.join(map(str, numbers))}."}],
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
    }


async def ask(
    client: httpx.AsyncClient, numbers: range, refusals: list[httpx.Response]
) -> list[int]:
    """One after the other, by a client that comes again when it is told to; tokens of each."""
    answered: list[int] = []
    while len(answered) < len(numbers):
        asked = body(numbers[len(answered)])
        response = await client.post("/v1/chat/completions", json=asked)
        if response.status_code == 429:
            refusals.append(response)
            await asyncio.sleep(int(response.headers["retry-after"]))
            continue
        response.raise_for_status()
        answered.append(response.json()["usage"]["completion_tokens"])
    return answered


async def test_overload_is_told_with_429_and_retry_after_and_ends_with_all_served(
    running: LocalCluster,
) -> None:
    refusals: list[httpx.Response] = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=running.base_url, timeout=300, limits=limits) as client:
        served = await asyncio.gather(
            *(ask(client, range(2 * n, 2 * n + 2), refusals) for n in range(24))
        )
    assert served == [[NUM_TOKENS] * 2] * 24
    assert refusals
    for refusal in refusals:
        assert 1 <= int(refusal.headers["retry-after"]) <= 60
        assert "have waited more than 2 dispatch cycles" in refusal.json()["error"]["message"]
