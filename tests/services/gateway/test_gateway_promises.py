"""Promises to classes: a request that fails breaks them; one whose client leaves, what is due."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.errors import Code
from headway.messages import Rejected
from headway.request import StreamKey
from tests.fakes.gateway_harness import Cluster, cluster, until

BODY = {"model": "tiny", "prompt": "hello", "headway": {"class": "short"}}


def write(folder: Path, **promises: float) -> Path:
    file = folder / "classes.toml"
    said = "\n".join(f"{name} = {seconds}" for name, seconds in promises.items())
    file.write_text(f'[[classes]]\nname = "short"\n{said}\n')
    return file


def counts(running: Cluster) -> dict[tuple[str, str], float]:
    """Numbers by promise, and whether it was kept."""
    return {
        (sample.labels["promise"], sample.labels["kept"]): sample.value
        for metric in running.service.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "headway_gateway_class_promises_total"
    }


async def post(running: Cluster, **body: Any) -> httpx.Response:
    async with running.http() as client:
        return await client.post("/v1/completions", json={**BODY, **body})


async def test_a_request_over_its_deadline_breaks_all_it_was_promised(
    tmp_path: Path, store_url: str
) -> None:
    classes = write(tmp_path, ttft=3600, ttfat=3600, tpot=9, deadline=0.05)
    async with cluster(tmp_path, store_url, classes=classes) as running:
        running.emulated.paused = True
        assert (await post(running)).status_code == 408
        names = ("ttft", "ttfat", "tpot", "deadline")
        assert counts(running) == {(name, "no"): 1.0 for name in names}


@pytest.mark.parametrize("num_outputs", [1, 3])
async def test_a_refusal_breaks_every_outputs_promises_unless_the_request_is_at_fault(
    tmp_path: Path, store_url: str, num_outputs: int
) -> None:
    classes = write(tmp_path, ttft=3600)
    async with cluster(tmp_path, store_url, classes=classes) as running:
        running.emulated.rejection = Rejected(StreamKey("", 0), Code.INVALID_ARGUMENT, "too long")
        assert (await post(running, n=num_outputs)).status_code == 400
        assert counts(running) == {}
        running.emulated.rejection = Rejected(StreamKey("", 0), Code.RESOURCE_EXHAUSTED, "full")
        assert (await post(running, n=num_outputs)).status_code == 429
        assert counts(running) == {("ttft", "no"): num_outputs}


async def test_a_client_that_leaves_breaks_what_is_overdue_alone(
    tmp_path: Path, store_url: str
) -> None:
    classes = write(tmp_path, ttft=0.001, tpot=9, deadline=3600)
    async with cluster(tmp_path, store_url, classes=classes) as running:
        running.emulated.paused = True
        asking = asyncio.create_task(post(running))
        await until(lambda: len(running.emulated.submitted) == 1)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await until(lambda: running.service.num_open == 0)
        assert counts(running) == {("ttft", "no"): 1.0}
