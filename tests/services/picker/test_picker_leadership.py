"""Two pickers, one Service: who answers for it, and who takes over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from services.picker import leadership
from services.picker.config import PickerConfig
from services.picker.leadership import PickerLeadership
from services.runtime.config import read_config
from tests.fakes.kube_watch import LEASES, SLICES, KubeApi, serving_api
from tests.fakes.picker_rig import Endpoints, picker, until

pytest.importorskip("kubernetes_asyncio")


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeApi]:
    async with serving_api(tmp_path, monkeypatch) as found:
        monkeypatch.setattr(leadership, "SECONDS", 1.0)
        yield found


class _Pickers:
    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._stack = AsyncExitStack()

    def add(self, name: str) -> PickerLeadership:
        address = f"10.0.0.{name}"
        found = PickerLeadership("serving/headway-picker", name, address, 9002, time.monotonic)
        self._stack.push_async_callback(found.close)
        return found

    @property
    def asked(self) -> Any:
        found = self._api.find(SLICES, "headway-picker-leader")
        return None if found is None else found["endpoints"][0]["addresses"]

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def pickers(api: KubeApi) -> AsyncIterator[_Pickers]:
    found = _Pickers(api)
    yield found
    await found.close()


async def _one_leads(
    first: PickerLeadership, second: PickerLeadership
) -> tuple[PickerLeadership, PickerLeadership]:
    await until(lambda: first.leads or second.leads)
    await asyncio.sleep(0.5)
    assert first.leads != second.leads
    return (first, second) if first.leads else (second, first)


async def test_of_two_one_leads_and_the_service_is_its(pickers: _Pickers, api: KubeApi) -> None:
    first, second = pickers.add("1"), pickers.add("2")
    leader, _ = await _one_leads(first, second)
    assert pickers.asked == ["10.0.0.1" if leader is first else "10.0.0.2"]
    labels = api.find(SLICES, "headway-picker-leader")["metadata"]["labels"]
    assert labels["kubernetes.io/service-name"] == "headway-picker"


async def test_a_leader_that_stops_hands_over(pickers: _Pickers) -> None:
    first = pickers.add("1")
    await until(lambda: first.leads)
    second = pickers.add("2")
    await first.close()
    await until(lambda: second.leads)
    await until(lambda: pickers.asked == ["10.0.0.2"])


async def test_a_leader_that_dies_loses_the_lease_when_it_runs_out(
    pickers: _Pickers, api: KubeApi
) -> None:
    first = pickers.add("1")
    await until(lambda: pickers.asked == ["10.0.0.1"])
    lease = api.find(LEASES, "headway-picker")
    await first.close()
    await api.put(LEASES, lease)  # as if it had not given it up
    second = pickers.add("2")
    await until(lambda: pickers.asked == ["10.0.0.2"])
    assert second.leads
    assert api.find(LEASES, "headway-picker")["spec"]["leaseTransitions"] == 1


async def test_without_the_api_server_the_leader_goes_on(pickers: _Pickers, api: KubeApi) -> None:
    first = pickers.add("1")
    await until(lambda: first.leads)
    second = pickers.add("2")
    api.refuses = True
    await asyncio.sleep(1.5)
    assert first.leads
    assert not second.leads
    api.refuses = False
    await _one_leads(first, second)


async def test_a_picker_answers_for_the_service_at_its_own_port(
    api: KubeApi, endpoints: Endpoints
) -> None:
    options = {"leader_of": "headway-picker", "advertise": "10.0.0.9", "service_id": "p"}
    async with picker(await endpoints.add(), **options) as service:
        await until(lambda: api.find(SLICES, "headway-picker-leader") is not None)
        port = int(service.address.rpartition(":")[2])
        assert api.find(SLICES, "headway-picker-leader")["ports"][0]["port"] == port
    assert api.find(LEASES, "headway-picker")["spec"]["holderIdentity"] == ""


def test_a_service_needs_an_address() -> None:
    with pytest.raises(HeadwayError, match="advertise"):
        read_config(PickerConfig, ["--endpoints=a:1", "--leader-of=picker"])
