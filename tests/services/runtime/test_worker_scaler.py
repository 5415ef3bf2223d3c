"""The supervisor scales what it supervises, as the autoscaler's actuator asks it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.autoscaler.actuators.process import ProcessActuator
from services.local.supervisor import ProcessSpec, Supervisor
from services.local.worker_scaler import WorkerScaler
from services.runtime.config import ServiceConfig
from services.runtime.store import Store


def light(role: str, service_id: str) -> ProcessSpec:
    """A service that starts soon stands for a worker."""
    return ProcessSpec("predictor", service_id, role=role)


@asynccontextmanager
async def scaled(
    url: str,
    cluster: str,
    folder: Path,
    make: Callable[[str, str], ProcessSpec] = light,
) -> AsyncIterator[tuple[Supervisor, ProcessActuator, list[str]]]:
    said: list[str] = []
    config = ServiceConfig(service_id="supervisor", store=url, cluster=cluster, drain_timeout=5.0)
    supervisor = Supervisor([light("decode", "decode-1")], config, folder, said.append)
    scaler = WorkerScaler(supervisor, config, ("prefill", "decode"), make)
    store = await Store.connect(url, cluster)
    actuator = ProcessActuator(config, store)
    try:
        await supervisor.start()
        await scaler.start()
        async with asyncio.timeout(90):
            yield supervisor, actuator, said
    finally:
        await actuator.close()
        await scaler.stop()
        await supervisor.stop()
        await store.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


async def test_processes_come_and_go_by_role_the_youngest_first(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    async with scaled(store_url, cluster, tmp_path) as (supervisor, actuator, said):
        await until(lambda: any("supervisor" in line or "serving" in line for line in said))
        await actuator.scale("decode", 3)
        await actuator.scale("prefill", 1)
        assert await actuator.ordered() == {"prefill": 1, "decode": 3}
        await supervisor.serving()
        await actuator.scale("decode", 2)
        assert (await actuator.ordered())["decode"] == 2, "what drains counts no more"
        await until(lambda: len(supervisor.processes) == 3)
        names = [process.spec.service_id for process in supervisor.processes]
        assert names == ["decode-1", "decode-2", "prefill-1"]
        assert "stopped" in (tmp_path / "decode-3.log").read_text(), "drained, not killed"
        await actuator.scale("decode", 3)
        assert supervisor.processes[-1].spec.service_id == "decode-3"


async def test_a_worker_that_was_given_up_goes_first(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    def make(role: str, service_id: str) -> ProcessSpec:
        flags = ("--log-level", "shout") if service_id == "decode-2" else ()
        return ProcessSpec("predictor", service_id, flags, role=role)

    async with scaled(store_url, cluster, tmp_path, make) as (supervisor, actuator, _):
        await until(lambda: bool(supervisor.processes[0].address))
        await actuator.scale("decode", 3)
        await until(lambda: supervisor.processes[1].is_given_up)
        await actuator.scale("decode", 2)
        await until(lambda: len(supervisor.processes) == 2)
        names = [process.spec.service_id for process in supervisor.processes]
        assert names == ["decode-1", "decode-3"]


@pytest.mark.parametrize(
    ("role", "number", "said"),
    [("unified", 1, "role is 'unified'"), ("decode", 65, "num_workers is 65")],
)
async def test_an_order_that_makes_no_sense_is_refused(
    store_url: str, cluster: str, tmp_path: Path, role: str, number: int, said: str
) -> None:
    async with scaled(store_url, cluster, tmp_path) as (_, actuator, _):
        while True:
            try:
                await actuator.ordered()
                break
            except HeadwayError:  # its lease is not there yet
                await asyncio.sleep(0.02)
        with pytest.raises(HeadwayError, match=said):
            await actuator.scale(role, number)


async def test_without_a_supervisor_the_way_out_is_named(
    store_url: str, cluster: str, store: Store
) -> None:
    actuator = ProcessActuator(ServiceConfig(store=store_url, cluster=cluster), store)
    with pytest.raises(HeadwayError, match="start it with `headway up`"):
        await actuator.ordered()
