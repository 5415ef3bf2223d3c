"""The scheduler leader is killed under load: a standby takes over, and no client notices more."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from openai import AsyncOpenAI

from services.runtime.store import Leader
from tests.fakes.local_cluster import MODEL, LocalCluster, chat, until
from tests.fakes.reference import greedy_text

pytestmark = [
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]

LONG = "Add 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22."
FLAGS = ("--schedulers", "2")
SHORT = ("Add 17, 25, 8.", "Sort 5, 3, 9.", "Count the letter r in strawberry.")


def ask_all(
    client: AsyncOpenAI, prompts: list[str], **options: Any
) -> tuple[list[asyncio.Task[tuple[str, str]]], list[asyncio.Event]]:
    """All at once, and an event each that says that its answer has begun."""
    begun = [asyncio.Event() for _ in prompts]
    asked = (
        chat(client, prompt, begun=event, **options)
        for prompt, event in zip(prompts, begun, strict=True)
    )
    return [asyncio.create_task(each) for each in asked], begun


async def leader_of(running: LocalCluster, newer_than: int = -1) -> Leader:
    found: Leader | None = None

    async def there_is_one() -> bool:
        nonlocal found
        found = await running.store.leader()
        return found is not None and found.fencing_token > newer_than

    await until(there_is_one)
    assert found is not None
    return found


def pid_of(running: LocalCluster, leader: Leader) -> int:
    pid = running.process(leader.candidate_id.rpartition("-")[0]).pid
    assert pid is not None
    return pid


async def test_requests_that_run_go_on(running: LocalCluster, client: AsyncOpenAI) -> None:
    endless: dict[str, Any] = {"max_tokens": 1200, "extra_body": {"ignore_eos": True}}
    undisturbed = await chat(client, LONG, **endless)
    asked, begun = ask_all(client, [LONG] * 6, **endless)
    await asyncio.gather(*(event.wait() for event in begun))
    killed = await leader_of(running)
    os.kill(pid_of(running, killed), signal.SIGKILL)
    assert [await task for task in asked] == [undisturbed] * len(asked)
    await leader_of(running, newer_than=killed.fencing_token)
    await running.supervisor.serving()


async def test_a_leader_that_wakes_up_after_it_was_followed_disturbs_nobody(
    running: LocalCluster, client: AsyncOpenAI
) -> None:
    prompts = [*SHORT, LONG] * 2
    expected = [greedy_text(MODEL, prompt) for prompt in prompts]
    paused = await leader_of(running)
    pid = pid_of(running, paused)
    asked, _ = ask_all(client, prompts)
    os.kill(pid, signal.SIGSTOP)
    try:

        async def has_been_followed() -> bool:
            return (await leader_of(running)).fencing_token > paused.fencing_token

        await until(has_been_followed)
    finally:
        os.kill(pid, signal.SIGCONT)
    later, _ = ask_all(client, prompts)
    assert [await task for task in asked] == expected
    assert [await task for task in later] == expected

    async def stands_by() -> bool:
        return "deposed" in running.log_of(paused.candidate_id.rpartition("-")[0])

    await until(stands_by)
