"""A worker as an endpoint of other routers: KV events and metrics as vLLM 0.32 has them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from headway.blocks import waypoint_names
from headway.core.picker.events import EndpointInfo, EndpointMetrics, KvChanged, Scraped, Stepped
from headway.core.picker.kv_chains import KvChains
from headway.errors import HeadwayError
from headway.messages import Dispatch, UnitBatch
from headway.service_class import shipped_classes
from services.endpoints.endpoints_file import Listed
from services.endpoints.watcher import Watcher
from services.picker.ext_proc import DESTINATION
from services.picker.prompts import Prompts
from services.runtime.config import read_config
from services.runtime.probes import Probes
from services.runtime.telemetry import serve_metrics
from services.worker.config import WorkerConfig
from tests.fakes.openai_endpoint import openai_endpoint
from tests.fakes.picker_rig import Endpoints, Exchange, named, picker, until
from tests.fakes.worker_service import MODEL, Leader, Sink, make_request, served

zmq = pytest.importorskip("zmq")


class _BatchOfVllm(msgspec.Struct, array_like=True):
    ts: float
    events: list[_StoredOfVllm | _RemovedOfVllm]
    data_parallel_rank: int | None = None


class _StoredOfVllm(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class _RemovedOfVllm(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


def _free_ports(count: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports


_Posted = Scraped | KvChanged | Stepped


class _Running:
    """A worker that publishes, with a leader that sends it prompts."""

    def __init__(self, leader: Leader, ports: list[int], metrics: str, sink: Any) -> None:
        self._leader, self._sink = leader, sink
        self.ports, self.metrics = ports, metrics
        self._num_sent = 0

    async def serve(self, prompt: tuple[int, ...], salt: str = "", adapter: str = "") -> None:
        self._num_sent += 1
        request = make_request(self._sink[1], self._num_sent)
        request = replace(request, prompt_token_ids=prompt, cache_salt=salt, adapter=adapter)
        await self._leader.send(Dispatch(self._num_sent, (UnitBatch(0, (request,)),)))
        async with asyncio.timeout(30):
            for _ in range(4):
                await self._sink[0].tokens.get()

    @asynccontextmanager
    async def watched(self, *, events: bool = True) -> AsyncIterator[list[_Posted]]:
        """What the picker's watcher of this endpoint posts."""
        posted: list[_Posted] = []
        kv, replay = (f"tcp://127.0.0.1:{port}" for port in self.ports[:2])
        info, metrics = EndpointInfo("127.0.0.1:1", "m"), f"http://{self.metrics}"
        listed = Listed(info, metrics, *((kv, replay) if events else ()))
        now = asyncio.get_running_loop().time
        async with aiohttp.ClientSession() as client:
            watcher = Watcher(listed, client, 0.1, 10.0, now, posted.append)
            yield posted
            await watcher.close()


@pytest.fixture
async def endpoints() -> AsyncIterator[Endpoints]:
    found = Endpoints()
    yield found
    await found.close()


@pytest.fixture
async def running(store_url: str, cluster: str, sink: tuple[Sink, str]) -> AsyncIterator[_Running]:
    ports = _free_ports(2)
    kv, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
    options: dict[str, Any] = {"engine": "fake", "kv_events": kv, "kv_events_replay": replay}
    options |= {"kv_events_topic": "kv@10.0.0.1@m", "lora": {"poems": "x", "sql": "y"}}
    async with served(store_url, cluster, **options) as (stub, runtime):
        leader = Leader(stub, 1)
        await leader.greet()
        with serve_metrics("127.0.0.1:0", runtime.metrics, Probes()) as address:
            yield _Running(leader, ports, address, sink)


def _changes(posted: list[_Posted]) -> list[KvChanged]:
    return [each for each in posted if isinstance(each, KvChanged)]


async def test_the_pickers_watcher_knows_the_prompts_that_a_worker_has_cached(
    running: _Running,
) -> None:
    prompts = [tuple(range(200)), (*range(130), *range(70))]
    names = {name for prompt in prompts for name in waypoint_names(prompt)}
    async with running.watched() as posted:
        for prompt in prompts:
            await running.serve(prompt)
        for _ in range(100):  # what was missed before the subscription is replayed
            await running.serve(tuple(range(500 + len(posted), 540 + len(posted))))
            if _changes(posted):
                break
        known: set[object] = set()
        chains = KvChains()

        def all_known() -> bool:
            for changed in _changes(posted):
                for stored in changed.stored:
                    known.update(name for name, _ in chains.store(stored))
            return names <= known

        await until(all_known)
    assert all(changed.is_complete for changed in _changes(posted))


@pytest.mark.parametrize(
    ("salt", "adapter", "number", "extra_keys"),
    [
        ("s", "", None, [("s",), None]),
        ("", "sql", 2, [("sql",), ("sql",)]),
        ("s", "poems", 1, [("poems", "s"), ("poems",)]),
    ],
)
async def test_events_have_the_layout_of_vllm(
    running: _Running, salt: str, adapter: str, number: int | None, extra_keys: list[Any]
) -> None:
    context = zmq.asyncio.Context.instance()
    with context.socket(zmq.REQ) as asking:  # as vLLM's own example asks for a replay
        asking.linger = 0
        asking.connect(f"tcp://127.0.0.1:{running.ports[1]}")
        await running.serve(tuple(range(40)), salt, adapter)
        await asking.send((0).to_bytes(8, "big"))
        async with asyncio.timeout(30):
            topic, sequence, payload = await asking.recv_multipart()
    assert (topic, sequence) == (b"kv@10.0.0.1@m", bytes(8))
    batch = msgspec.msgpack.decode(payload, type=_BatchOfVllm)
    (stored,) = batch.events
    assert isinstance(stored, _StoredOfVllm)
    assert batch.data_parallel_rank == 0
    assert (stored.block_size, stored.medium) == (16, "GPU")
    assert stored.parent_block_hash is None
    assert stored.extra_keys == extra_keys
    assert (stored.lora_id, stored.lora_name) == (number, adapter or None)
    assert stored.token_ids == list(range(32))
    assert len(stored.block_hashes) == len(stored.extra_keys)


async def test_the_pickers_watcher_reads_a_workers_metrics(running: _Running) -> None:
    for _ in range(2):
        await running.serve(tuple(range(40)))
    async with running.watched(events=False) as posted:
        await until(lambda: posted)
    scraped = posted[0]
    assert isinstance(scraped, Scraped)
    metrics = scraped.result
    assert isinstance(metrics, EndpointMetrics)
    assert (metrics.num_blocks, metrics.block_size) == (160, 16)
    assert metrics.computed_tokens == 40 + 8
    assert metrics.output_tokens == 2 * 4
    assert (metrics.num_prompts, metrics.prefill_seconds > 0) == (2, True)


async def test_a_workers_metrics_have_vllms_names(running: _Running) -> None:
    await running.serve(tuple(range(40)))
    async with aiohttp.ClientSession() as client:
        text = await (await client.get(f"http://{running.metrics}/metrics")).text()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("vllm:"))
    labels = '{engine="0",model_name="headway-mini"}'
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert float(values[f"vllm:{name}{labels}"]) == 0.0
    model = '{model_name="headway-mini"}'
    assert float(values[f"vllm:prefix_cache_queries_total{model}"]) == 40
    adapters = 'max_lora="2",model_name="headway-mini",running_lora_adapters=""'
    assert f'vllm:lora_requests_info{{{adapters},waiting_lora_adapters=""}}' in values
    assert float(values[f"vllm:prefix_cache_hits_total{model}"]) == 0
    assert float(values[f"vllm:request_prefill_time_seconds_count{model}"]) == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--kv-events=tcp://*:5557"], "encrypts nothing"),
        (["--kv-events=127.0.0.1:5557"], "tcp://HOST:PORT"),
        (["--kv-events-replay=tcp://127.0.0.1:5558"], "needs kv_events"),
        (["--kv-events=ipc:///tmp/kv", "--no-prefix-caching"], "prefix_caching"),
    ],
)
def test_events_that_nobody_could_get_or_everybody_are_refused(flags: list[str], says: str) -> None:
    with pytest.raises(HeadwayError, match=says):
        read_config(WorkerConfig, flags)


async def test_an_engine_with_a_cache_of_its_own_publishes_by_itself(
    store_url: str, cluster: str
) -> None:
    with openai_endpoint() as endpoint:
        options: dict[str, Any] = {"engine": "openai", "engine_args": {"url": endpoint.url}}
        with pytest.raises(HeadwayError, match="publishes itself"):
            async with served(store_url, cluster, kv_events="ipc:///tmp/headway-no", **options):
                pass
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert not left & {"endpoint watch", "stream watch"}, "the engine has begun, and nobody ends it"


async def test_a_picker_sends_a_prompt_to_the_worker_that_has_it_by_its_events(
    running: _Running, endpoints: Endpoints, tmp_path: Path
) -> None:
    other = await endpoints.add()
    file = tmp_path / "endpoints.toml"
    kv_events, kv_replay = running.ports
    file.write_text(
        f'[[endpoints]]\naddress = "{other}"\n[[endpoints]]\naddress = "{running.metrics}"\n'
        f"kv_events = {kv_events}\nkv_replay = {kv_replay}\n"
    )
    body = {"prompt": "This text is in no request so far. " * 30}
    prompts = Prompts(shipped_classes(), str(MODEL))
    asked = prompts.request_of(body, {}, 1, "", 0.0)
    await running.serve(tuple(asked.prompt_token_ids))
    async with (
        picker(endpoints="", endpoints_file=file, model=str(MODEL)) as service,
        Exchange(service.address) as first,
        Exchange(service.address) as second,
    ):

        def ends() -> set[str]:
            return {e.ends.value for e in service.endpoints() if e.address == running.metrics}

        for number in range(100):  # what was missed before the subscription is replayed
            await running.serve(tuple(range(600 + number, 640 + number)))
            if ends() == {"inferred"}:
                break
        # An endpoint is chosen once it has been scraped, and its events may come before.
        await until(
            lambda: all(e.health == "up" and not e.num_requests for e in service.endpoints())
        )
        hint = {"envoy.lb.subset_hint": {f"{DESTINATION}-subset": [running.metrics]}}
        named(await first.ask(b'{"prompt": "x"}', metadata=hint))  # the other has less to do
        assert named(await second.ask(json.dumps(body).encode()))[0] == running.metrics
