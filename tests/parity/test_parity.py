"""What the cores decided in a live run they decide again, told the same in another process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.local.service_flags import CONFIGS
from tests.fakes.local_cluster import ROOT, local_cluster


async def ask(client: httpx.AsyncClient, number: int) -> None:
    """A chat of the small model; every third one is left in the middle."""
    body = {
        "model": "headway-mini",
        "messages": [{"role": "user", "content": f"Add {number}, 25, 8."}],
        "max_tokens": 40 + 10 * (number % 5),
        "stream": True,
    }
    async with client.stream("POST", "/v1/chat/completions", json=body, timeout=300) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            if number % 3 == 2:
                return


@pytest.mark.parametrize("preset", ["headway", "vllm-like"])
async def test_a_live_run_replayed_gives_the_same_decisions(
    store_url: str, cluster: str, tmp_path: Path, preset: str
) -> None:
    records = tmp_path / "records"
    flags = ("--preset", preset, "--prefill", "1", "--decode", "1", "--unified", "1")
    recording = (f"--{service}.record-events={records}" for service in CONFIGS)
    async with (
        local_cluster(store_url, cluster, tmp_path, *flags, *recording) as running,
        httpx.AsyncClient(base_url=running.base_url, timeout=300) as client,
    ):
        await asyncio.gather(*(ask(client, number) for number in range(12)))
    found = {path.name: replayed(path) for path in sorted(records.glob("*.events"))}
    steps = {name.rpartition("-")[0]: each["steps"] for name, each in found.items()}
    assert min(steps["gateway"], steps["scheduler"], steps["decode-1"] + steps["unified-1"]) > 20
    assert {name: each["difference"] for name, each in found.items() if each["difference"]} == {}


def replayed(path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.replayed", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
