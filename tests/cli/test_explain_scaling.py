"""``headway explain scaling``: what the live autoscaler decided, and from which figures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cli.explain_scaling import decision_text, explained
from headway.core.autoscaler.events import PublishTargets
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, StartUp, Targets
from services.autoscaler.config import AutoscalerConfig
from services.local.run_file import SECRET_FILE, RunningCluster, leave_run_file
from services.runtime import wire
from services.runtime.identity.secret import load_secret
from services.runtime.store import Member, Store
from tests.fakes.autoscaler_service import decided, served


def decision(at: float, num_prefill: int, **figures: object) -> PublishTargets:
    targets = Targets(num_prefill, 2, 0, 0, f"{num_prefill} are needed")
    return PublishTargets(targets, at, "tokenscale", **figures)  # type: ignore[arg-type]


def test_a_change_is_told_with_its_reason_and_figures() -> None:
    fleet = Fleet(PoolLoad(1, 1, 9, 300, 0.5, 0.25), PoolLoad(2))
    after = decision(2.0, 3, rates=Rates(4.0, 5.0, 6.0), fleet=fleet)
    assert decision_text(after, decision(1.0, 1)).splitlines() == [
        "tokenscale: prefill 1 → 3, decode 2",
        "    3 are needed",
        "    rates: 4.00 requests/s, 5 input and 6 output tokens/s",
        "    prefill: 1 ready, 1 starting, 9 requests, 300 tokens waiting, 50% busy, "
        "25% of KV memory",
        "    decode: 2 ready, 0 starting, 0 requests, 0 tokens waiting, 0% busy, 0% of KV memory",
    ]


def test_the_start_up_that_was_measured_is_told() -> None:
    cold = Fleet(PoolLoad(1), start_up=StartUp(4.25, 3))
    assert "start-up: 4.25 s, the median of the last 3; none stands by" in decision_text(
        decision(1.0, 1, fleet=cold)
    )
    warm = Fleet(PoolLoad(1), start_up=StartUp(0.31, 2, 1))
    assert "start-up: 0.31 s, the median of the last 2 that stood by; 1 now" in decision_text(
        decision(1.0, 1, fleet=warm)
    )


def test_a_missing_figure_is_said_to_be_missing() -> None:
    assert decision_text(decision(1.0, 1)).splitlines()[-2:] == [
        "    rates: none was fresh",
        "    fleet: no report was fresh",
    ]


def test_changes_and_the_newest_are_told_or_every_one() -> None:
    decisions = [decision(float(at), num) for at, num in enumerate((1, 1, 2, 2, 2))]
    assert [at for at, _ in explained(decisions, every=False)] == [0.0, 2.0, 4.0]
    assert len(list(explained(decisions, every=True))) == 5


def test_decisions_survive_the_wire() -> None:
    fleet = Fleet(PoolLoad(1, 1, 9, 300, 0.5, 0.25), PoolLoad(2))
    fleet = replace(fleet, start_up=StartUp(0.5, 3, 1))
    for sent in (decision(1.0, 1), decision(2.0, 3, rates=Rates(4.0, 5.0, 6.0), fleet=fleet)):
        assert wire.unpack_decision(wire.pack_decision(sent)) == sent


def explain(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli", "explain", "scaling", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


async def test_the_secret_is_the_given_one_or_the_environments_or_what_headway_up_left(
    store_url: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    variable = "HEADWAY_CLUSTER_SECRET_FILE"
    config = AutoscalerConfig(
        store=store_url, cluster=cluster, interval=0.05, cluster_secret_file=ours
    )
    left = tmp_path / SECRET_FILE
    load_secret(left)
    async with served(config) as (service, address):
        await decided(service)
        asked = partial(explain, "--autoscaler", address, "--log-dir", str(tmp_path))
        monkeypatch.setenv(variable, str(ours))
        assert (await asyncio.to_thread(asked)).returncode == 0
        refused = await asyncio.to_thread(asked, "--cluster-secret-file", str(other))
        assert refused.returncode == 1
        assert "another secret" in refused.stderr
        monkeypatch.delenv(variable)
        assert "another secret" in (await asyncio.to_thread(asked)).stderr
        left.write_bytes(ours.read_bytes())
        assert (await asyncio.to_thread(asked)).returncode == 0


async def test_the_autoscaler_is_found_in_the_store_and_asked(
    store_url: str, cluster: str, store: Store, tmp_path: Path
) -> None:
    config = AutoscalerConfig(store=store_url, cluster=cluster, num_prefill=3, interval=0.05)
    async with served(config) as (service, address):
        await decided(service)
        await store.join(Member("autoscaler", "autoscaler", address), ttl=60)
        leave_run_file(tmp_path, RunningCluster("", cluster, store_url), pid=1)
        given = ("--store", store_url, "--cluster", cluster)
        for flags in (given, ("--log-dir", str(tmp_path))):
            done = await asyncio.to_thread(explain, *flags)
            assert done.returncode == 0, done.stderr
            assert "fixed: prefill 3, decode 1" in done.stdout
    wrong = await asyncio.to_thread(explain, "--store", "nowhere")
    assert wrong.returncode == 2
    assert "--store is 'nowhere'" in wrong.stderr
    gone = await asyncio.to_thread(explain, "--autoscaler", address)
    assert gone.returncode == 1
    assert f"no autoscaler answers at {address}" in gone.stderr
