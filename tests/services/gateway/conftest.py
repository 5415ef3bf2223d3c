"""What the gateway's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop
from gateway_harness import Cluster, cluster

from services.runtime.local_store import LocalStore


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
