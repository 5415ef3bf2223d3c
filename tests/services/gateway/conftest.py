"""What the gateway's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from gateway_harness import Cluster, cluster

from services.runtime.local_store import LocalStore


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
