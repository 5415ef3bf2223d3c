"""Checkpoints, a served worker and a gateway's sink that the tests here share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from protos import gateway_pb2_grpc, worker_pb2_grpc
from tests.fakes import engine_rig
from tests.fakes.worker_service import Sink, served


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One folder per family."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        family: engine_rig.save_checkpoint(root / family, family) for family in engine_rig.FAMILIES
    }


@pytest.fixture(scope="session")
def llama(checkpoints: dict[str, str]) -> str:
    return checkpoints["llama"]


@pytest.fixture
async def sink() -> AsyncIterator[tuple[Sink, str]]:
    # As a gateway's: workers ping it every two seconds, of which gRPC by itself bears few.
    found, server = Sink(), grpc.aio.server(options=(("grpc.http2.max_ping_strikes", 0),))
    gateway_pb2_grpc.add_TokenSinkServicer_to_server(found, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield found, f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.fixture(params=["fake", "torch"])
def engine(request: pytest.FixtureRequest) -> str:
    """The engine that a worker computes with."""
    return str(request.param)


@pytest.fixture
async def worker(
    store_url: str, cluster: str, engine: str
) -> AsyncIterator[worker_pb2_grpc.WorkerStub]:
    async with served(store_url, cluster, engine=engine) as (stub, _):
        yield stub
