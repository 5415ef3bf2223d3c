"""``headway up --autoscale``: a worker serves another role while clients are being answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from headway.cost.pass_time import PassTime
from headway.cost.profile import load_profile, save_profile
from tests.fakes.load import PATIENCE, Load
from tests.fakes.local_cluster import local_cluster, until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


async def test_unified_workers_become_prefillers_and_decoders_without_a_failed_request(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    """By a profile of passes so slow that under the limit unified workers need far more."""
    slow = PassTime(0.02, per_prefill_token=0.02, per_request=1e-4)
    profile = tmp_path / "slow.toml"
    save_profile(replace(load_profile("llama-8b-a100"), name="slow", pass_time=slow), profile)
    params = "scaling.inter_token_limit=0.025,scaling.velocity_weight=0,scaling.convertibles=false"
    flags = ("--autoscale", "--preset", "headway", "--budget", "3", "--scale-down-delay", "2")
    given = (*flags, "--profile", str(profile), "--set", f"{params},scaling.start_up=1")
    async with (
        local_cluster(store_url, cluster, tmp_path, *given) as running,
        httpx.AsyncClient(base_url=running.base_url, timeout=PATIENCE) as client,
    ):
        assert [member.role for member in await running.workers()] == ["unified"] * 3
        pids = {p.spec.service_id: p.pid for p in running.supervisor.processes}
        load = Load(client)
        load.at_a_time(5)

        async def has_split() -> bool:
            load.check()
            roles = sorted(member.role for member in await running.workers())
            return roles == ["decode", "prefill", "prefill"]

        await until(has_split, PATIENCE)
        now = {p.spec.service_id: p.pid for p in running.supervisor.processes}
        assert pids.items() <= now.items(), "nobody was started anew"
        answered = load.num_answered

        async def is_answering() -> bool:
            load.check()
            return load.num_answered > answered + 5

        await until(is_answering, PATIENCE)
        await load.end()
        assert await running.metric("headway_gateway_open_requests") == 0
        why = [line for line in running.log_of("gateway").splitlines() if "resubmitted" in line]
        assert await running.metric("headway_gateway_resubmitted_requests") == 0, why
