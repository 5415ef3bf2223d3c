"""Each preset on a real cluster: what it alone does shows in the metrics, and answers are right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.explain import ask, decisions_about
from headway.life.parts import PartKind
from services.local.store import free_port
from tests.fakes.lives import conserves
from tests.fakes.local_cluster import LocalCluster, chat, local_cluster, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PROMPT, ANSWER = "Add 17, 25, 8.", "50"
LONG = "Add 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22."
Start = Callable[..., AbstractAsyncContextManager[LocalCluster]]


@pytest.fixture
def start(store_url: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A cluster under a preset, with options of its services; one request has been answered."""

    @asynccontextmanager
    async def started(preset: str, *flags: str, **options: object) -> AsyncIterator[LocalCluster]:
        for name, value in options.items():
            monkeypatch.setenv(f"HEADWAY_{name.upper()}", str(value))
        flags = ("--preset", preset, "--metrics-port", str(free_port(12)), *flags)
        async with local_cluster(store_url, cluster, tmp_path, *flags) as found:
            assert await answer(found) == ANSWER
            yield found

    return started


async def answer(running: LocalCluster, **options: Any) -> str:
    """To a question that the model answers correctly, streamed."""
    async with running.openai() as client:
        return (await chat(client, PROMPT, **options))[1]


async def generate(running: LocalCluster, num_tokens: int, prompt: str = "Sort 5, 3, 9.") -> None:
    """So many tokens, wherever the model would end."""
    body = {
        "model": "headway-mini",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": num_tokens,
        "ignore_eos": True,
    }
    # many begin at once, and reading certificates for each would keep connections silent for long
    async with httpx.AsyncClient(base_url=running.base_url, timeout=300, verify=False) as client:
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def has_burst(running: LocalCluster) -> bool:
    """Whether requests were labelled so; else it is quiet for a while, so that others may be."""
    if await running.metric("headway_gateway_burst_requests_total") > 0:
        return True
    await asyncio.sleep(2.0)
    return False


async def explanation(running: LocalCluster) -> str:
    """Why a new request went where it went, as ``headway explain`` prints it."""
    body = {"model": "headway-mini", "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=running.base_url, timeout=300) as client:
        request_id = (await client.post("/v1/completions", json=body)).headers["x-request-id"]
    told = await asyncio.to_thread(ask, running.base_url, request_id)
    ((_, life, lines),) = told.outputs
    assert life is not None
    conserves(life)
    assert PartKind.PREFILL in {part.kind for part in life.parts}
    return "\n".join(each.text() for each in decisions_about(request_id, lines))


async def test_vllm_like_dispatches_one_by_one_and_holds_nothing(start: Start) -> None:
    async with start("vllm-like", "--decode", "1") as running:
        await asyncio.gather(*(answer(running) for _ in range(6)))
        rule = 'headway_scheduler_dispatches_total{rule="least-outstanding"}'
        dispatches = await running.metric(rule, "scheduler")
        assert dispatches >= 7
        requests = "headway_scheduler_dispatched_requests_total"
        assert await running.metric(requests, "scheduler") == dispatches
        assert await running.metric("headway_gateway_paced_tokens") == 0


async def test_sbs_holds_requests_and_sends_them_together(start: Start) -> None:
    async with start("sbs", "--decode", "1") as running:
        prompts = [f"Add {n}, 12, 13, 14, 15, 16, 17." for n in range(40)]
        await asyncio.gather(*(generate(running, 8, prompt) for prompt in prompts))
        held = await running.metric(
            'headway_scheduler_wait_seconds_sum{question="dispatch"}', "scheduler"
        )
        dispatches = await running.metric("headway_scheduler_dispatches_total", "scheduler")
        requests = await running.metric("headway_scheduler_dispatched_requests_total", "scheduler")
        assert requests == 41
        assert dispatches < requests
        assert held > 0
        told = await explanation(running)
        assert "dispatch by" in told
        assert "placement by iqr-lex: to decode-1/0" in told


async def test_uniboost_preempts_for_better_requests_and_is_told_a_fitted_gamma(
    start: Start,
) -> None:
    options = {"max_model_len": 256, "num_blocks": 20, "prefix_caching": False}
    flags = ("--prefill", "0", "--decode", "0", "--unified", "1")
    async with start("uniboost", *flags, **options) as running:
        long = [asyncio.create_task(generate(running, 200)) for _ in range(4)]

        async def has_preempted() -> bool:
            await generate(running, 2)
            return await running.metric("headway_worker_preemptions_total", "unified-1") > 0

        await until(has_preempted)
        await asyncio.gather(*long)

        async def is_told() -> bool:
            """More at once than the blocks hold, so that some wait for more than a second."""
            await asyncio.gather(*(generate(running, 40) for _ in range(60)))
            return await running.metric("headway_worker_gamma_per_s", "unified-1") > 0

        await until(is_told, 300.0)
        gamma = await running.metric("headway_scheduler_gamma_per_s", "scheduler")
        assert gamma == await running.metric("headway_worker_gamma_per_s", "unified-1")


async def test_star_moves_running_requests_to_where_there_is_less_to_come(start: Start) -> None:
    options = {
        "set": "rescheduling.interval=0.1,rescheduling.rest=60,rescheduling.step_tokens=64",
        "predict_every": 0,  # lengths by like requests: those below end where no model would
    }
    flags = ("--prefill", "0", "--decode", "0", "--unified", "2")
    async with start("star", *flags, **options) as running:

        async def has_moved() -> bool:
            """Long ones and short ones by turns: each worker has one kind until some move."""
            asked = [
                asyncio.create_task(generate(running, *((600,) if n % 2 == 0 else (2, LONG * 4))))
                for n in range(6)
            ]
            await asyncio.gather(*asked)
            moves = 'headway_scheduler_moves_total{cause="rescheduling"}'
            return await running.metric(moves, "scheduler") > 0

        await until(has_moved)


async def test_pascal_moves_answers_and_paces_them_unless_told_otherwise(start: Start) -> None:
    async with start("pascal", "--decode", "2", set="pacing.tpot=0.2") as running:
        before = await running.metric("headway_gateway_paced_tokens")
        assert await answer(running, extra_body={"headway": {"pacing": False}}) == ANSWER
        assert await running.metric("headway_gateway_paced_tokens") == before

        async def is_reasoning() -> bool:
            asked = [asyncio.create_task(generate(running, 60, LONG)) for _ in range(4)]
            seen = 0.0
            while not (seen or all(task.done() for task in asked)):
                name = "headway_worker_reasoning_requests"
                seen = sum([await running.metric(name, f"decode-{n}") for n in (1, 2)])
            await asyncio.gather(*asked)
            return seen > 0

        await until(is_reasoning)

        async def has_moved() -> bool:
            asked = [generate(running, 80, LONG) for _ in range(6)]
            await asyncio.gather(*asked, *(answer(running) for _ in range(3)))
            moves = 'headway_scheduler_moves_total{cause="boundary"}'
            return await running.metric(moves, "scheduler") > 0

        await until(has_moved)
        assert await running.metric("headway_gateway_paced_tokens") > before
        assert await running.metric("headway_gateway_ttfat_seconds_sum") > 0
        assert await running.metric("headway_gateway_qoe_count") > 0


async def burst_of_fifty(running: LocalCluster) -> None:
    """Fifty prompts at once, all different."""
    prompts = [f"Add {', '.join(map(str, range(n, n + 25)))}." for n in range(50)]
    await asyncio.gather(*(generate(running, 4, prompt) for prompt in prompts))


CONVERTED = 'headway_scheduler_dispatches_total{rule="convertible"}'
NEVER_LATE = ",".join(f"dispatch.ttft_{size}=600" for size in ("short", "medium", "long"))


async def test_tokenscale_sends_bursts_to_convertible_decoders(start: Start) -> None:
    flags = ("--decode", "1", "--convertible", "1")
    async with start("tokenscale", *flags) as running:

        async def has_helped() -> bool:
            await burst_of_fifty(running)
            is_used = await running.metric(CONVERTED, "scheduler") > 0
            return is_used and await has_burst(running)

        await until(has_helped)


async def test_under_headway_a_convertible_prefills_nothing_but_bursts(start: Start) -> None:
    """On any machine: no SLO is so short that a prompt could be late for it."""
    flags = ("--decode", "1", "--convertible", "1")
    async with start("headway", *flags, set=NEVER_LATE, policy="burst=off") as running:
        for _ in range(3):
            await burst_of_fifty(running)
        assert (
            await running.metric("headway_scheduler_dispatched_requests_total", "scheduler") > 150
        )
        assert await running.metric(CONVERTED, "scheduler") == 0


async def test_under_headway_a_convertible_takes_part_in_a_burst(start: Start) -> None:
    flags = ("--decode", "1", "--convertible", "1")
    async with start("headway", *flags, set=NEVER_LATE) as running:

        async def has_helped() -> bool:
            await burst_of_fifty(running)
            is_used = await running.metric(CONVERTED, "scheduler") > 0
            return await has_burst(running) and is_used

        await until(has_helped)


async def test_headway_holds_windows_and_paces_and_labels_bursts(start: Start) -> None:
    async with start("headway", "--decode", "1", set="pacing.tpot=0.2") as running:

        async def has_burst_of_forty() -> bool:
            prompts = [f"Add {n}, 12, 13, 14, 15, 16, 17." for n in range(40)]
            await asyncio.gather(*(generate(running, 8, prompt) for prompt in prompts))
            return await has_burst(running)

        await until(has_burst_of_forty)
        await asyncio.gather(*(answer(running) for _ in range(4)))
        dispatches = await running.metric("headway_scheduler_dispatches_total", "scheduler")
        requests = await running.metric("headway_scheduler_dispatched_requests_total", "scheduler")
        assert dispatches < requests
        assert await running.metric("headway_gateway_paced_tokens") > 0
