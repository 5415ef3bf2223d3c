"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from services.runtime.local_store import LocalStore


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """A real store of this test run's own."""
    with LocalStore() as store:
        yield store.url


@pytest.fixture
def cluster() -> str:
    """A cluster name that no other test uses."""
    return f"test-{uuid4().hex[:12]}"
