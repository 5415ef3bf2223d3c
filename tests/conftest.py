"""What all tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from grpc.aio import init_grpc_aio
from hypothesis import HealthCheck, settings

import headway_launch
from services.local.store import LocalStore
from services.runtime.store import Store

headway_launch.enter_rooms()  # for the processes that tests start

# Without a GPU kernels are interpreted. Triton reads this once, when torch imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Test processes that run side by side share the cores: torch's threads would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Slow machines are no findings: no test asserts a time.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")

# One secret for all services of a test run, and none in the user's cache folder.
_SECRETS = tempfile.TemporaryDirectory(prefix="headway-test-")
os.environ["HEADWAY_CLUSTER_SECRET_FILE"] = f"{_SECRETS.name}/secret"

init_grpc_aio()  # held for the whole run: its last owner, collected anywhere, joins its thread


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only files with slow tests where only those are asked for: it takes half a minute."""
    if config.option.markexpr != "slow" or collection_path.suffix != ".py":
        return None
    return True if "mark.slow" not in collection_path.read_text("utf-8") else None


@pytest.fixture(scope="session", autouse=True)
def _empty_working_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All tests run in an empty folder: what ``make up`` has left in ``run/`` is nobody's here."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("working"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """A real store of this test run's own."""
    with LocalStore() as store:
        yield store.url


@pytest.fixture
def cluster() -> str:
    """A cluster name that no other test uses."""
    return f"test-{uuid4().hex[:12]}"


@pytest.fixture
async def store(store_url: str, cluster: str) -> AsyncIterator[Store]:
    """A connection to this cluster's part of the store."""
    found = await Store.connect(store_url, cluster)
    yield found
    await found.close()
