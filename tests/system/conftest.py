"""A cluster of real processes for each module that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.fakes.local_cluster import LocalCluster, local_cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    request: pytest.FixtureRequest, store_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LocalCluster]:
    """Started with the module's ``FLAGS`` and ``ENVIRONMENT``, where it names them."""
    name, folder = f"test-{uuid4().hex[:12]}", tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in getattr(request.module, "ENVIRONMENT", {}).items():
            patch.setenv(variable, value)
        flags = getattr(request.module, "FLAGS", ())
        async with local_cluster(store_url, name, folder, *flags) as found:
            yield found


@pytest.fixture
def client(running: LocalCluster) -> AsyncOpenAI:
    return running.openai()
