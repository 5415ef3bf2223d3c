"""What the gateway's tests share."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from services.local.store import LocalStore
from tests.fakes.gateway_harness import Cluster, cluster


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """As services run: uvloop's transports differ from asyncio's in small ways."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """A private store for the session."""
    with LocalStore() as store:
        yield store.url


@pytest.fixture
async def running(tmp_path: Path, store_url: str) -> AsyncIterator[Cluster]:
    """A gateway with default options."""
    async with cluster(tmp_path, store_url) as found:
        yield found


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*make, *names], check=True, capture_output=True)
    return cert, key
