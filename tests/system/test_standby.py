"""A worker that stands by: loaded and warm, no member, and what it is told to be at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from headway.core.autoscaler.starts import StartsReport
from protos import standby_pb2, standby_pb2_grpc
from services.autoscaler.actuators.process import ProcessActuator
from services.local.standby_workers import StandbyWorkers
from services.local.supervisor import ProcessSpec, Supervisor
from services.local.worker_scaler import WorkerScaler
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store
from tests.fakes.local_cluster import MODEL, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PATIENCE = 300.0
FLAGS = ("--model", MODEL, "--num-threads", "1", "--num-blocks", "160", "--predict-every", "0")


def spec(role: str, service_id: str) -> ProcessSpec:
    chunk = ("--chunk-tokens", "99") if role == "convertible" else ()
    return ProcessSpec("worker", service_id, (*FLAGS, "--role", role, *chunk), role=role)


def standing_by(service_id: str) -> ProcessSpec:
    found = spec("decode", service_id)
    return replace(found, flags=(*found.flags, "--standby"))


@asynccontextmanager
async def scaled(
    url: str, cluster: str, folder: Path
) -> AsyncIterator[tuple[Supervisor, ProcessActuator, Store]]:
    config = ServiceConfig(service_id="supervisor", store=url, cluster=cluster, drain_timeout=5.0)
    supervisor = Supervisor([], config, folder, lambda line: None)
    standby = StandbyWorkers(supervisor, config, 1, standing_by, refill_after=3600.0)
    scaler = WorkerScaler(supervisor, config, ("decode", "convertible"), spec, standby)
    store = await Store.connect(url, cluster)
    actuator = ProcessActuator(config, store)
    try:
        await supervisor.start()
        await scaler.start()
        yield supervisor, actuator, store
    finally:
        await actuator.close()
        await scaler.stop()
        await supervisor.stop()
        await store.close()


async def activate(address: str, role: str) -> grpc.StatusCode:
    async with open_channel(address, ServiceConfig(), ServiceRole.WORKER) as channel:
        request = standby_pb2.ActivateRequest(role=role)
        try:
            await standby_pb2_grpc.StandbyStub(channel).Activate(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_a_warm_worker_serves_in_the_role_that_is_asked_for(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    async with scaled(store_url, cluster, tmp_path) as (supervisor, actuator, store):

        async def stands_by() -> bool:
            return (await actuator.starts()).num_standby == 1

        await until(lambda: _is_member(store, "standby"), PATIENCE)
        await until(stands_by, PATIENCE)
        (process,) = supervisor.processes
        assert not await store.members("worker"), "nobody may send it requests"
        assert await actuator.ordered() == {"decode": 0, "convertible": 0}
        assert await activate(process.address, "juggler") is grpc.StatusCode.INVALID_ARGUMENT

        pid = process.pid
        await actuator.scale("convertible", 1)
        assert await actuator.ordered() == {"decode": 0, "convertible": 1}
        found = await _starts(actuator)
        (start,) = found.starts
        assert (start.role, start.warm, found.num_standby) == ("convertible", True, 0)
        assert start.seconds >= 0
        assert process.pid == pid, "the process that was warm"
        (member,) = await store.members("worker")
        assert (member.role, member.member_id) == ("convertible", "standby-1")
        assert await activate(process.address, "convertible") is grpc.StatusCode.OK
        wrong = await activate(process.address, "decode")
        assert wrong is grpc.StatusCode.FAILED_PRECONDITION
        assert "standing_by" in process.log_path.read_text()

        # None stands by any more: the next one is a cold start.
        await actuator.scale("decode", 1)
        (start,) = (await _starts(actuator)).starts
        assert (start.role, start.warm) == ("decode", False)

        # What it has become it is again after a crash.
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        async def is_back() -> bool:
            return process.pid not in (None, pid) and bool(process.address)

        await until(is_back, PATIENCE)
        roles = {member.member_id: member.role for member in await store.members("worker")}
        assert roles["standby-1"] == "convertible"


async def _is_member(store: Store, service: str) -> bool:
    return bool(await store.members(service))


async def _starts(actuator: ProcessActuator) -> StartsReport:
    """The next report with a start in it."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await actuator.starts()).starts:
            await asyncio.sleep(0.05)
    return found
