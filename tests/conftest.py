"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from grpc.aio import init_grpc_aio

from services.local.store import LocalStore

# Without a GPU kernels are interpreted. Triton reads this once, when torch imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Test processes that run side by side share the cores: torch's threads would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

init_grpc_aio()  # held for the whole run: its last owner, collected anywhere, joins its thread


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """A real store of this test run's own."""
    with LocalStore() as store:
        yield store.url


@pytest.fixture
def cluster() -> str:
    """A cluster name that no other test uses."""
    return f"test-{uuid4().hex[:12]}"
