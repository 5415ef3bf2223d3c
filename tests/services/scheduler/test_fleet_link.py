"""The leading scheduler's report reaches the autoscaler that is a member."""

from __future__ import annotations

import asyncio

import pytest

from headway.core.autoscaler.events import FleetReport
from headway.messages import PassWork
from headway.policies.scaling.protocol import Fleet, PoolLoad, WorkSample
from protos import autoscaler_pb2, autoscaler_pb2_grpc
from services.runtime import wire
from services.runtime.config import ServiceConfig
from services.runtime.server import GrpcServer
from services.runtime.store import Member, Store
from services.scheduler import fleet_link
from services.scheduler.fleet_link import FleetLink

SAMPLES = (WorkSample("d", "decode", PassWork(2, 0.5, 0, 0, 6, 90)),)
FLEET = Fleet(
    PoolLoad(1, 0, 2, 3, 0.25, 0.5),
    PoolLoad(4),
    PoolLoad(0),
    PoolLoad(5),
    SAMPLES,
    network_tokens_per_s=9000.0,
)
OTHER = Fleet(unified=PoolLoad(2))


class Listener(autoscaler_pb2_grpc.AutoscalerServicer):
    """Remembers fleets."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[FleetReport] = asyncio.Queue()

    async def ReportFleet(
        self, request: autoscaler_pb2.FleetReport, context: object
    ) -> autoscaler_pb2.FleetReportReply:
        self.heard.put_nowait(wire.unpack_fleet(request))
        return autoscaler_pb2.FleetReportReply()


async def test_the_fleet_is_told_again_and_again_to_whoever_is_the_autoscaler(
    store_url: str, cluster: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_link, "_INTERVAL", 0.05)
    config = ServiceConfig(service_id="s", store=store_url, cluster=cluster)
    link = FleetLink(config, store, lambda: {"m": FLEET})
    link.start()
    try:
        for name in ("first", "second"):
            listener = Listener()  # type: ignore[abstract]  # the other calls are nobody's here
            server = GrpcServer(config)
            server.add(listener)
            member = Member("autoscaler", name, await server.start())
            await store.join(member, ttl=60)
            async with asyncio.timeout(20):
                assert await listener.heard.get() == FleetReport(FLEET, "m")
            await store.leave(member)
            await server.stop(0)
    finally:
        await link.close()


async def test_every_model_is_told_to_the_autoscaler_that_scales_it(
    store_url: str, cluster: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_link, "_INTERVAL", 0.05)
    config = ServiceConfig(service_id="s", store=store_url, cluster=cluster)
    link = FleetLink(config, store, lambda: {"m": FLEET, "other": OTHER, "nobody's": OTHER})
    link.start()
    listeners: dict[str, Listener] = {}
    servers = []
    try:
        for model in ("m", "other"):
            listeners[model] = Listener()  # type: ignore[abstract]  # the other calls are nobody's here
            servers.append(GrpcServer(config))
            servers[-1].add(listeners[model])
            address = await servers[-1].start()
            await store.join(Member("autoscaler", model, address, model=model), ttl=60)
        async with asyncio.timeout(20):
            for _ in range(3):
                assert await listeners["m"].heard.get() == FleetReport(FLEET, "m")
                assert await listeners["other"].heard.get() == FleetReport(OTHER, "other")
    finally:
        await link.close()
        for server in servers:
            await server.stop(0)
