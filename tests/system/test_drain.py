"""``headway up --autoscale``: a decoder is drained under load, and its streams go on elsewhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from services.autoscaler.actuators.process import ProcessActuator
from services.local.store import free_port
from services.runtime.config import ServiceConfig
from tests.fakes.local_cluster import local_cluster, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PATIENCE = 300.0
PARAMS = "scaling.prefill_requests=100000,scaling.decode_requests=100000"  # wants what there is
NUM_TOKENS = 1200


async def answer(client: httpx.AsyncClient, number: int) -> list[str]:
    """A long greedy answer, piece by piece."""
    body = {
        "model": "headway-mini",
        "prompt": f"Add {number}, 25, 8.",
        "stream": True,
        "max_tokens": NUM_TOKENS,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    pieces: list[str] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            assert '"error"' not in line, line
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                pieces += [choice["text"] for choice in choices]
    return pieces


async def test_streams_of_a_decoder_that_drains_go_on_elsewhere_token_for_token(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    flags = ("--autoscale", "--prefill", "1", "--decode", "2", "--scale-down-delay", "600")
    # As long as it takes: a worker that stops before all have moved has them resubmitted.
    ports = ("--metrics-port", str(free_port(12)), "--drain-timeout", str(PATIENCE))
    async with (
        local_cluster(store_url, cluster, tmp_path, *flags, *ports, "--set", PARAMS) as running,
        httpx.AsyncClient(base_url=running.base_url, timeout=PATIENCE) as client,
    ):
        numbers = range(11, 17)
        undisturbed = await asyncio.gather(*(answer(client, n) for n in numbers))
        expected = {n: "".join(pieces) for n, pieces in zip(numbers, undisturbed, strict=True)}
        asked: dict[int, asyncio.Task[list[str]]] = {}
        actuator = ProcessActuator(ServiceConfig(store=store_url, cluster=cluster), running.store)

        async def all_decode() -> bool:
            """Ask for all at once, and again where some have ended before the others began."""
            if not asked or any(task.done() for task in asked.values()):
                await asyncio.gather(*asked.values())
                asked.update({n: asyncio.create_task(answer(client, n)) for n in numbers})
            page = (await client.get("/metrics")).text
            lines = [x for x in page.splitlines() if x.startswith("headway_gateway_running_req")]
            return sum(float(x.rsplit(" ", 1)[1]) for x in lines) == len(numbers)

        await until(all_decode, PATIENCE)
        await actuator.scale("decode", 1)

        async def is_gone() -> bool:
            return any("decode-2" in line and "gone" in line for line in running.lines)

        await until(is_gone, PATIENCE)
        found = {n: "".join(await task) for n, task in asked.items()}
        await actuator.close()
        assert found == expected
        assert await running.metric("headway_scheduler_moves_total", "scheduler") > 0
        assert not any("killed" in line or "died" in line for line in running.lines)
        assert await running.metric("headway_gateway_resubmitted_requests") == 0
