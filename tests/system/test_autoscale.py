"""``headway up --autoscale``: a burst makes workers, its end drains them, and nobody notices."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from services.autoscaler.actuators.process import ProcessActuator
from services.runtime.config import ServiceConfig
from tests.fakes.load import PATIENCE, Load
from tests.fakes.local_cluster import LocalCluster, local_cluster, until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

PARAMS = "scaling.prefill_requests=4,scaling.decode_requests=2,scaling.window=3"


async def test_a_burst_makes_workers_and_its_end_drains_them_without_a_failed_request(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    flags = ("--autoscale", "--prefill", "1", "--decode", "1", "--set")
    bounds = ("--max-prefill", "2", "--max-decode", "2", "--scale-down-delay", "6")
    async with (
        local_cluster(store_url, cluster, tmp_path, *flags, PARAMS, *bounds) as running,
        httpx.AsyncClient(base_url=running.base_url, timeout=PATIENCE) as client,
    ):
        actuator = ProcessActuator(ServiceConfig(store=store_url, cluster=cluster), running.store)

        async def one_is_gone() -> bool:
            load.check()
            return any(line.endswith("gone") for line in running.lines)

        load = Load(client)
        load.at_a_time(12)

        async def has_grown() -> bool:
            load.check()
            return [member.role for member in await running.workers()].count("decode") == 2

        await until(has_grown, PATIENCE)
        answered = load.num_answered

        # Drained under this load, too; the autoscaler orders another one instead.
        await actuator.scale("decode", 1)
        await until(one_is_gone, PATIENCE)
        load.at_a_time(1)  # goes on while workers drain

        async def has_shrunk() -> bool:
            load.check()
            return roles(running) == ["decode", "prefill"]

        await until(has_shrunk, PATIENCE)
        await load.end()
        await actuator.close()
        assert load.num_answered > answered
        assert await running.metric("headway_gateway_open_requests") == 0
        assert not any("killed" in line or "died" in line for line in running.lines)
        assert any(line.endswith("draining") for line in running.lines)


def roles(running: LocalCluster) -> list[str]:
    """What is left; which ones it is depends on who took whose role meanwhile."""
    return sorted(p.spec.role for p in running.supervisor.processes if p.spec.role)
