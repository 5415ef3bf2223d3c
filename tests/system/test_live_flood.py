"""``headway bench flood --live``: keys and classes on a real cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.floods.live import LiveFlood
from bench.floods.offered import CLASS, TENANT, Flood
from tests.fakes.local_cluster import MODEL

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("by", [TENANT, CLASS])
def test_a_live_flood_is_measured(by: str, tmp_path: Path) -> None:
    flood = Flood(by, usual=0.3, flood=2.0, seconds=2.0)
    said: list[str] = []
    asked = LiveFlood(MODEL, flood, prompts=(300,), seeds=(1,))
    quiet, flooded = asyncio.run(asked.rows(tmp_path, said.append))
    assert quiet["num_requests"] == flooded["num_requests"] > 2
    assert flooded["flooder_tokens_per_s"] > 0
    assert 0 < flooded["p50_ttft"] <= flooded["p99_ttft"]
    assert said[1:] == ["no flood", "a flood of prompts of 300 tokens"]
