"""What the scheduler's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.scheduler_rig import Rig


@pytest.fixture
async def rig(store_url: str, cluster: str) -> AsyncIterator[Rig]:
    """An empty cluster of the test's own."""
    async with Rig(store_url, cluster) as found:
        yield found
