"""``headway bench flood --live``: keys and classes on a real cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bench.floods.live import LiveFlood
from bench.floods.offered import CLASS, TENANT, Flood
from bench.runner.comparison import compare
from tests.fakes.local_cluster import MODEL

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("by", [TENANT, CLASS])
def test_a_live_flood_is_measured(by: str, tmp_path: Path) -> None:
    flood = Flood(by, usual=0.3, flood=2.0, seconds=2.0)
    file = tmp_path / "flood.json"
    asked = LiveFlood(MODEL, flood, tmp_path, prompts=(300,))
    assert asyncio.run(compare(asked, [1], file)).status == 0
    rows = json.loads(file.read_text())["runs"]
    assert [row["system"] for row in rows] == ["no flood", "300 tokens"]
    quiet, flooded = (row["figures"] for row in rows)
    assert quiet["num_requests"] == flooded["num_requests"] > 2
    assert flooded["flooder_tokens_per_s"] > 0
    assert 0 < flooded["ttft_p50"] <= flooded["ttft_p99"]
