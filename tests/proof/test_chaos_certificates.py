"""Certificates that a campaign swaps: its own are taken, a stranger's are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from proof.chaos.certificates import Certificates
from services.runtime.config import ServiceConfig
from services.runtime.health import is_serving
from services.runtime.identity.roles import ServiceRole
from services.runtime.server import GrpcServer

WORKER = ServiceRole.WORKER


async def test_a_service_is_reached_but_with_a_strangers_certificate() -> None:
    certificates = Certificates("chaos")
    with certificates.in_environment():
        caller = ServiceConfig(cluster="chaos")
    assert caller.tls_cert is not None
    assert ServiceConfig().tls_cert is None
    issued: Mapping[str, Any] = certificates.issue(WORKER, "w")
    server = GrpcServer(ServiceConfig(cluster="chaos", listen="127.0.0.1:0", **issued))
    address = await server.start()
    await server.set_serving(True)

    async def reached(expected: bool) -> None:
        async with asyncio.timeout(60):
            while await is_serving(address, caller, WORKER, within=5) is not expected:
                await asyncio.sleep(0.05)

    try:
        await reached(True)
        certificates.replace(WORKER, "w", by_stranger=True)
        await reached(False)
        certificates.replace(WORKER, "w")
        await reached(True)
    finally:
        await server.stop(0)
        certificates.close()
