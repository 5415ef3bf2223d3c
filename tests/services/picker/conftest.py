"""Endpoints for the picker's tests, which run where the extra ``picker`` is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("envoy.service.ext_proc.v3.external_processor_pb2")
pytest.importorskip("zmq")

from tests.fakes.picker_rig import Endpoints


@pytest.fixture
async def endpoints() -> AsyncIterator[Endpoints]:
    """Emulated endpoints; all end with the test."""
    found = Endpoints()
    yield found
    await found.close()
