"""A request that is made slow on purpose, on a real cluster, is told why by ``headway explain``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli import explain, main
from headway.life.reasons import reasons_of
from headway.life.record import LifeRecord
from tests.fakes.lives import conserves
from tests.fakes.local_cluster import local_cluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

CAUSES = {"behind a burst", "preempted", "moved"}
NUM_BURSTS, NUM_CALLS, NUM_CHOICES = 12, 4, 4
TOKENS_OF_A_DECODER = 2400
RULES = ("interval=0.2", "rest=0.5", "theta=0.01", "floor=0")
FLAGS = (
    *("--prefill", "1", "--decode", "2", "--preset", "vllm-like"),
    *("--policy", "rescheduling=current-load"),
    *("--set", ",".join(f"rescheduling.{rule}" for rule in RULES)),
    *("--worker.num-blocks", str(TOKENS_OF_A_DECODER // 16)),
)


async def burst(client: httpx.AsyncClient, number: int) -> list[str]:
    """Ask for more KV than both decoders have, all at once; return the outputs' ids."""

    async def ask(place: int) -> list[str]:
        body: dict[str, Any] = {
            "model": "headway-mini",
            "prompt": f"{number}{place} " + "Add 17, 25, 8, 41. " * 12,
            "n": NUM_CHOICES,
            "max_tokens": 400 + 250 * place,
            "temperature": 1.0,
            "ignore_eos": True,
        }
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        call_id = answer.headers["x-request-id"]
        return [f"{call_id}-{choice}" for choice in range(NUM_CHOICES)]

    found = await asyncio.gather(*(ask(place) for place in range(NUM_CALLS)))
    return [request_id for listed in found for request_id in listed]


def causes_of(life: LifeRecord) -> set[str]:
    """Return the causes that held it up for long enough to be told."""
    return {each.name for each in reasons_of(life) if each.is_delay and each.seconds >= 1e-3}


async def test_a_request_behind_a_burst_moved_and_preempted_is_told_all_three_causes(
    store_url: str, cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        local_cluster(store_url, cluster, tmp_path, *FLAGS) as running,
        httpx.AsyncClient(base_url=running.base_url, timeout=600) as client,
    ):
        seen: set[str] = set()
        slow: LifeRecord | None = None
        for number in range(NUM_BURSTS):
            for request_id in await burst(client, number):
                told = await asyncio.to_thread(explain.ask, running.base_url, request_id)
                (life,) = (output.life for output in told.outputs)
                assert life is not None
                conserves(life)
                seen |= causes_of(life)
                if causes_of(life) >= CAUSES:
                    slow = life
            if slow is not None:
                break
        assert seen >= CAUSES
        assert slow is not None, "no request met all three"
        flags = ["explain", slow.request_id, "--url", running.base_url]
        assert await asyncio.to_thread(main, [*flags, "--profile", "llama-8b-a100"]) == 0
    text = capsys.readouterr().out
    for cause in ("behind a burst: ", "preempted: it lost its blocks", "moved: it moved"):
        assert cause in text
    assert "vllm-like, as it ran, simulated" in text
    assert "headway, simulated" in text
