"""The supervisor with real processes: restart after a death, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from services.runtime.config import ServiceConfig
from services.runtime.supervisor import ProcessSpec, Supervisor


def make_supervisor(store_url: str, cluster: str, folder: Path, say: list[str]) -> Supervisor:
    config = ServiceConfig(
        service_id="supervisor", store=store_url, cluster=cluster, drain_timeout=1.0
    )
    specs = [ProcessSpec("scheduler", name) for name in ("one", "two")]
    return Supervisor(specs, config, folder, say.append)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_killed_process_is_restarted_and_stopping_leaves_none(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    said: list[str] = []
    supervisor = make_supervisor(store_url, cluster, tmp_path, said)
    try:
        await supervisor.start()
        async with asyncio.timeout(60):
            await supervisor.serving()
            victim = supervisor.processes[0]
            first_pid = victim.pid
            assert first_pid is not None
            os.kill(first_pid, signal.SIGKILL)
            while victim.pid in (None, first_pid):
                await asyncio.sleep(0.02)
            await supervisor.serving()
        pids = [process.pid for process in supervisor.processes]
    finally:
        await supervisor.stop()
    assert all(pid is not None and not is_alive(pid) for pid in pids)
    assert any("one" in line and "restarting" in line for line in said)


async def test_the_log_of_a_service_that_cannot_start_is_shown(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    said: list[str] = []
    config = ServiceConfig(
        service_id="supervisor", store=store_url, cluster=cluster, drain_timeout=1.0
    )
    spec = ProcessSpec("scheduler", "bad", ("--placement", "nonsense"))
    supervisor = Supervisor([spec], config, tmp_path, said.append)
    try:
        await supervisor.start()
        async with asyncio.timeout(60):
            while not any("nonsense" in line for line in said):
                await asyncio.sleep(0.02)
    finally:
        await supervisor.stop()
