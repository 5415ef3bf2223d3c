"""Clusters whose workers compute with vLLM: KV from one to another, and deaths under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from services.autoscaler.actuators.process import ProcessActuator
from services.local import prometheus
from services.local.store import free_port
from services.runtime.config import ServiceConfig
from tests.fakes.local_cluster import MODEL, LocalCluster, local_cluster, until
from tests.fakes.reference import greedy_text
from tests.fakes.vllm_rig import Heard, stock_outputs, streamed, worker_config

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.loading import load_parts

pytestmark = [pytest.mark.vllm, pytest.mark.system, pytest.mark.timeout(1800)]

PATIENCE = 600.0
NUM_TOKENS = 360
NUM_BEFORE_DEATH = 20
GREEDY, SAMPLED = range(6), range(6, 8)
HOLDS_STILL = "scaling.prefill_requests=100000,scaling.decode_requests=100000"
PROMPTS = ("Add 17, 25, 8.", "Sort 5, 3, 9.", "Count the letter r in strawberry.")


@pytest.fixture(scope="module")
def stock() -> Mapping[int, list[int]]:
    """What one stock vLLM says, under its own scheduler and with its own sampler."""
    parts, _, _ = load_parts(worker_config(engine="vllm", max_model_len=768, num_blocks=256))
    try:
        return stock_outputs(parts.core, NUM_TOKENS)[0]
    finally:
        parts.close()


@asynccontextmanager
async def asked_cluster(
    store_url: str, cluster: str, folder: Path, *flags: str
) -> AsyncIterator[tuple[LocalCluster, httpx.AsyncClient]]:
    """A cluster with these flags, and a client of it."""
    async with (
        local_cluster(store_url, cluster, folder, *flags) as running,
        httpx.AsyncClient(base_url=running.base_url, timeout=PATIENCE) as client,
    ):
        yield running, client


async def tokens_of(
    client: httpx.AsyncClient, number: int, heard: Heard = lambda *_: None
) -> list[int]:
    """The tokens of a streamed answer; those of ``SAMPLED`` are drawn with a seed."""
    return await streamed(client, number, NUM_TOKENS, float(number in SAMPLED), heard)


async def all_run(running: LocalCluster, count: int) -> None:
    """Wait until so many requests have begun."""

    async def hold() -> bool:
        return await running.metric("headway_gateway_running_req") == count

    await until(hold, PATIENCE)


async def num_sent(running: LocalCluster, worker: str) -> float:
    """The KV transfers that a worker has sent to their end."""
    return await running.metric('headway_worker_kv_transfers_total{end="sent"}', worker)


async def test_what_is_handed_off_and_moved_between_vllm_workers_is_what_one_stock_engine_says(
    store_url: str, cluster: str, tmp_path: Path, stock: Mapping[int, list[int]]
) -> None:
    roles = ("--prefill", "1", "--decode", "2", "--autoscale", "--scale-down-delay", "600")
    metrics = ("--metrics-port", str(free_port(16)))
    flags = ("--engine", "vllm", "--dtype", "float32", *roles, *metrics, "--set", HOLDS_STILL)
    async with asked_cluster(store_url, cluster, tmp_path, *flags) as (running, client):
        asked = [asyncio.create_task(tokens_of(client, number)) for number in GREEDY]
        actuator = ProcessActuator(ServiceConfig(store=store_url, cluster=cluster), running.store)
        await all_run(running, len(asked))
        await actuator.scale("decode", 1)

        async def is_gone() -> bool:
            return any("decode-2" in line and "gone" in line for line in running.lines)

        await until(is_gone, PATIENCE)
        assert await asyncio.gather(*asked) == [stock[number] for number in GREEDY]
        await actuator.close()
        assert await num_sent(running, "prefill-1") == len(asked)
        assert await running.metric("headway_scheduler_moves_total", "scheduler") > 0
        assert await running.metric("headway_gateway_resubmitted_requests") == 0


async def answer_of(client: httpx.AsyncClient, prompt: str) -> tuple[str, str]:
    body = {
        "model": "headway-mini",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.0,
    }
    reply = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
    message = reply["choices"][0]["message"]
    return message.get("reasoning_content") or "", message["content"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_kv_goes_between_a_vllm_worker_and_one_of_headways_own_engine(
    store_url: str, cluster: str, tmp_path: Path, role: str
) -> None:
    port = free_port(16)
    flags = ("--prefill", "1", "--decode", "1", "--dtype", "float32", "--metrics-port", str(port))
    async with asked_cluster(store_url, cluster, tmp_path, *flags) as (running, client):
        own = running.process(f"{role}-1")
        place = own.spec.flags.index("--metrics-listen")
        same = own.spec.flags[:place] + own.spec.flags[place + 2 :]
        spec = replace(own.spec, service_id=f"vllm-{role}", flags=(*same, "--engine", "vllm"))
        others = [process.spec for process in running.supervisor.processes]
        vllm = running.supervisor.add(prometheus.beside(spec, others, port))
        async with asyncio.timeout(PATIENCE):
            await vllm.serving()
        await running.supervisor.remove(own)
        answers = await asyncio.gather(*(answer_of(client, prompt) for prompt in PROMPTS))
        assert answers == [greedy_text(MODEL, prompt) for prompt in PROMPTS]
        sender = vllm.spec.service_id if role == "prefill" else "prefill-1"
        assert await num_sent(running, sender) == len(PROMPTS)
        assert await running.metric("headway_gateway_resubmitted_requests") == 0


def killing(running: LocalCluster, victim: str) -> Heard:
    """Kill a worker once, in the midst of the first answer that it gives."""
    alive = [victim]

    def heard(decision: str, num_tokens: int) -> None:
        if alive and f"unit={victim}/" in decision and num_tokens >= NUM_BEFORE_DEATH:
            running.kill(alive.pop())

    return heard


@pytest.mark.parametrize("engine", ["vllm", "vllm-native"])
async def test_whichever_vllm_worker_is_killed_no_token_is_lost_doubled_or_changed(
    store_url: str, cluster: str, tmp_path: Path, stock: Mapping[int, list[int]], engine: str
) -> None:
    roles = ("--prefill", "0", "--decode", "0", "--unified", "2")
    flags = ("--engine", engine, "--dtype", "float32", *roles)
    async with asked_cluster(store_url, cluster, tmp_path, *flags) as (running, client):
        quiet = await asyncio.gather(*(tokens_of(client, number) for number in SAMPLED))
        expected = [*(stock[number] for number in GREEDY), *quiet]
        for victim in ("unified-1", "unified-2"):
            before = await running.metric("headway_gateway_resubmitted_requests")
            pid = running.process(victim).pid
            heard = killing(running, victim)
            asked = [tokens_of(client, number, heard) for number in (*GREEDY, *SAMPLED)]
            assert await asyncio.gather(*asked) == expected
            assert await running.metric("headway_gateway_resubmitted_requests") > before

            async def is_back(victim: str = victim, pid: int | None = pid) -> bool:
                process = running.process(victim)
                serves = any(each.member_id == victim for each in await running.workers())
                return serves and process.pid not in (None, pid) and not process.is_awaited

            await until(is_back, PATIENCE)
