"""Endpoints from an InferencePool, at an API server that lists and watches."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.endpoints.endpoints_file import read_entries
from services.endpoints.pool_watch import PoolWatch
from services.picker.config import PickerConfig
from services.runtime.config import read_config
from tests.fakes.kube_watch import PODS, POOLS, KubeApi, pod, pool, serving_api
from tests.fakes.picker_rig import Endpoints, Exchange, named, picker, until

pytest.importorskip("kubernetes_asyncio")
_A, _B = ("10.0.0.1", 8000), ("10.0.0.2", 8000)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeApi]:
    async with serving_api(tmp_path, monkeypatch) as found:
        yield found


class _Watching:
    def __init__(self) -> None:
        self.num_news = 0
        self.pool = PoolWatch("serving/vllm", self._changed)

    def _changed(self) -> None:
        self.num_news += 1

    async def finds(self, *endpoints: tuple[str, int]) -> None:
        await until(lambda: self.pool.endpoints == endpoints)


@asynccontextmanager
async def watching() -> AsyncIterator[_Watching]:
    found = _Watching()
    try:
        yield found
    finally:
        await found.pool.close()


async def test_pods_come_and_go_with_their_readiness(api: KubeApi) -> None:
    await api.put(POOLS, pool())
    await api.put(PODS, pod("a", "10.0.0.1"))
    async with watching() as found:
        await found.finds(_A)
        await api.put(PODS, pod("b", "10.0.0.2", ready=False))
        await api.put(PODS, pod("c", "10.0.0.3", app="other"))
        await api.put(PODS, pod("b", "10.0.0.2"))
        await found.finds(_A, _B)
        await api.put(PODS, pod("a", "10.0.0.1", leaving=True))
        await found.finds(_B)
        await api.delete(PODS, "a")
        await api.put(PODS, pod("b", "10.0.0.2", app="other"))
        await found.finds()
        assert found.num_news
    assert api.num_lists[PODS] == 1


async def test_a_watch_that_ends_goes_on_without_another_list(api: KubeApi) -> None:
    await api.put(POOLS, pool())
    async with watching() as found:
        await until(lambda: api.num_lists[PODS])
        for name, address in (("a", _A), ("b", _B)):
            await api.end_watches()
            await api.put(PODS, pod(name, address[0]))
        await found.finds(_A, _B)
    assert api.num_lists == {PODS: 1, POOLS: 1}


async def test_a_watch_that_is_too_old_begins_with_a_list(api: KubeApi) -> None:
    await api.put(POOLS, pool())
    await api.put(PODS, pod("a", "10.0.0.1"))
    async with watching() as found:
        await found.finds(_A)
        await api.forget_history()
        await api.put(PODS, pod("b", "10.0.0.2"))
        await found.finds(_A, _B)
        await until(lambda: api.num_lists[PODS] == 2)


async def test_without_its_api_server_what_is_known_holds(api: KubeApi) -> None:
    await api.put(POOLS, pool())
    await api.put(PODS, pod("a", "10.0.0.1"))
    async with watching() as found:
        await found.finds(_A)
        api.refuses = True
        await api.end_watches()
        await api.put(PODS, pod("b", "10.0.0.2"))
        assert found.pool.endpoints == (_A,)
        api.refuses = False
        await found.finds(_A, _B)


async def test_the_pool_may_come_later_select_others_and_go(api: KubeApi) -> None:
    await api.put(PODS, pod("a", "10.0.0.1"))
    await api.put(PODS, pod("b", "10.0.0.2", app="other"))
    async with watching() as found:
        await until(lambda: api.num_lists[POOLS])
        await api.put(POOLS, pool())
        await found.finds(_A)
        await api.put(POOLS, pool(9000))
        await found.finds(("10.0.0.1", 9000))
        await api.put(POOLS, pool(labels={"app": "other"}))
        await found.finds(_B)
        await api.delete(POOLS, "vllm")
        await found.finds()


async def test_a_picker_names_the_pods_of_its_pool(api: KubeApi, endpoints: Endpoints) -> None:
    address = await endpoints.add()
    await api.put(POOLS, pool(int(address.rpartition(":")[2])))
    await api.put(PODS, pod("a", "127.0.0.1"))
    async with picker(inference_pool="vllm", resolve_interval=60.0) as service:
        await until(lambda: [e.health for e in service.endpoints()] == ["up"])
        async with Exchange(service.address) as exchange:
            assert named(await exchange.ask(json.dumps({"prompt": "x"}).encode())) == [address]
        await api.put(PODS, pod("a", "127.0.0.1", leaving=True))
        await until(lambda: not service.endpoints())


# --- how pools are named ------------------------------------------------------------------


def test_an_entry_is_an_address_or_a_pool(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text('[[endpoints]]\npool = "serving/vllm"\nkv_events = 5557\n')
    (entry,) = read_entries(file)
    assert (entry.pool, entry.kv_events) == ("serving/vllm", 5557)
    file.write_text('[[endpoints]]\npool = "vllm"\naddress = "x:1"\n')
    with pytest.raises(HeadwayError, match="either an address or a pool"):
        read_entries(file)


def test_a_pool_and_addresses_are_two_ways() -> None:
    with pytest.raises(HeadwayError, match="either"):
        read_config(PickerConfig, ["--inference-pool=vllm", "--endpoints=a:1"])
