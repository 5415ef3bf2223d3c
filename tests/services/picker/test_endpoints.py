"""Endpoints as workers: by file and by name, by their metrics, events and responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from headway.core.picker.events import (
    MOST_TOKENS,
    EndpointMetrics,
    Ends,
    KvChanged,
    Stepped,
    StoredBlocks,
)
from headway.errors import HeadwayError
from headway.service_class import shipped_classes
from headway_vllm.steps import StepEnd, StepTopic
from services.endpoints.endpoints_file import entries_of, read_entries, resolve
from services.endpoints.kv_events import KvEventReader, read_batch
from services.endpoints.steps import read_step, read_steps
from services.endpoints.vllm_metrics import read_metrics
from services.local.store import free_port
from services.picker.config import PickerConfig
from services.picker.prompts import Prompts
from services.runtime.config import read_config
from tests.fakes.picker_rig import (
    Endpoints,
    Exchange,
    endpoint_process,
    named,
    picker,
    response_headers,
    until,
)

_BODY = json.dumps({"prompt": "Hello"}).encode()


def _file(folder: Path, *addresses: str, more: str = "") -> Path:
    file = folder / "endpoints.toml"
    file.write_text("".join(f'[[endpoints]]\naddress = "{a}"\n{more}\n' for a in addresses))
    return file


# --- the file ---------------------------------------------------------------------------


async def test_a_file_is_read_again_when_it_changes(endpoints: Endpoints, tmp_path: Path) -> None:
    first, second = await endpoints.add(), await endpoints.add()
    file = _file(tmp_path, first)
    async with picker(endpoints="", endpoints_file=file, resolve_interval=0.1) as service:
        await until(lambda: [e.address for e in service.endpoints()] == [first])
        _file(tmp_path, second)
        await until(
            lambda: [(e.address, e.health) for e in service.endpoints()] == [(second, "up")]
        )
        file.write_text("[[endpoints]\n")
        await asyncio.sleep(0.3)
        async with Exchange(service.address) as exchange:
            assert named(await exchange.ask(_BODY)) == [second]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[endpoints]]\naddress = "x"', "host:port"),
        ('[[endpoints]]\naddress = "x:1"\nchunk = 3', "chunk"),
        ('[[endpoints]]\naddress = "x:1"\nchunk_tokens = 0', "chunk_tokens"),
        ("[[endpoints", "cannot be used"),
        ("x = " + "[" * 5000, "cannot be used"),
        ("x = " + "1" * 5000, "cannot be used"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_is_wrong(
    text: str, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text(text)
    with pytest.raises(HeadwayError, match=says):
        read_entries(file)


async def test_a_name_is_all_of_its_addresses() -> None:
    (listed,) = await resolve(entries_of("localhost:8000"))
    assert listed.info.address == "127.0.0.1:8000"
    assert listed.info.max_model_len == MOST_TOKENS


@pytest.mark.parametrize("flags", [[], ["--endpoints=a:1", "--endpoints-file=f"]])
def test_endpoints_are_given_in_one_way(flags: list[str]) -> None:
    with pytest.raises(HeadwayError, match="either"):
        read_config(PickerConfig, flags)


# --- metrics ----------------------------------------------------------------------------


def test_vllms_metrics_are_summed_over_engines() -> None:
    text = """# HELP vllm:num_requests_running Requests
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1234"} 1.0
vllm:prompt_tokens_total{engine="0"} 1000.0
vllm:prefix_cache_hits_total{engine="0"} 400.0
vllm:external_prefix_cache_hits_total{engine="0"} 100.0
vllm:request_prefill_time_seconds_sum{engine="0"} 1.5
vllm:request_prefill_time_seconds_count{engine="0"} 3
vllm:generation_tokens_total{engine="0"} 90.0
"""
    assert read_metrics(text) == EndpointMetrics(7, 2, 0.25, 1234, 32, 500.0, 1.5, 90.0, 3.0)


@pytest.mark.parametrize("text", ["", "other 1", "vllm:", "vllm:num_requests_running"])
def test_metrics_of_others_are_none_or_zero(text: str) -> None:
    assert read_metrics(text) in (None, EndpointMetrics())


# --- an endpoint that is stopped ----------------------------------------------------------


async def test_a_frozen_process_gets_nothing_once_it_is_noticed_until_it_goes_on() -> None:
    async with endpoint_process() as frozen, endpoint_process() as other:
        options = {"scrape_interval": 0.2, "scrape_timeout": 1.0}
        async with picker(frozen.address, other.address, **options) as service:

            def health() -> str:
                return next(e.health for e in service.endpoints() if e.address == frozen.address)

            async def pick() -> Sequence[str]:
                async with Exchange(service.address) as exchange:
                    return named(await exchange.ask(_BODY))

            frozen.freeze()
            await until(lambda: health() == "silent")
            for _ in range(30):
                assert await pick() == [other.address]
                await asyncio.sleep(0.05)
            frozen.thaw()
            await until(lambda: health() == "up")
            assert set(await pick()) == {frozen.address, other.address}


# --- prompts ----------------------------------------------------------------------------


def test_prompts_without_a_tokenizer_count_four_bytes_a_token_and_keep_their_beginnings() -> None:
    prompts = Prompts(shipped_classes())
    turn = [{"role": "user", "content": "a" * 400}]
    first = prompts.request_of({"messages": turn}, {}, 1, "", 0.0).prompt_token_ids
    more = [*turn, {"role": "assistant", "content": [{"type": "text", "text": "b" * 80}]}]
    second = prompts.request_of({"messages": more}, {}, 2, "", 0.0).prompt_token_ids
    assert len(first) == 101
    assert len(second) > len(first)
    assert second[: len(first)] == first


def test_texts_of_a_prompt_are_read_in_order_however_deep_they_are() -> None:
    prompts = Prompts(shipped_classes())
    flat = ["ab", "cd", "ef", {"a": "gh"}, "ij", 7]
    deep: object = ["cd", ["ef", {"a": "gh"}], "ij"]
    for _ in range(5000):
        deep = [[], deep, {}]
    read = [
        prompts.request_of({"input": text}, {}, 1, "", 0.0).prompt_token_ids
        for text in (flat, ["ab", deep, 7])
    ]
    assert len(read[0]) == 4
    assert read[0] == read[1]


def test_headers_name_class_and_tenant() -> None:
    classes = shipped_classes()
    name = next(iter(classes.by_name))
    headers = {"x-gateway-inference-objective": name, "x-gateway-inference-fairness-id": "t"}
    request = Prompts(classes).request_of({"prompt": "x"}, headers, 1, "", 0.0)
    assert request.standing.tenant == "t"
    assert request.standing.service == classes.by_name[name]


# --- KV events --------------------------------------------------------------------------


def _batch(first: int) -> bytes:
    stored = {
        "type": "BlockStored",
        "block_hashes": [first],
        "parent_block_hash": first - 1 if first else None,
        "token_ids": list(range(16 * first, 16 * first + 16)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return msgspec.msgpack.encode([1.5, [stored], 0])


def test_events_are_read_in_vllms_old_form_and_in_its_new_one() -> None:
    old = ["BlockStored", [7], None, list(range(16)), 16, None]
    payload = msgspec.msgpack.encode([1.5, [old, ["BlockRemoved", [3]]]])
    expected = StoredBlocks((7,), None, list(range(16)), 16)
    assert read_batch("e", payload) == KvChanged("e", (expected,), (3,))
    assert read_batch("e", _batch(0)).stored == (StoredBlocks((0,), None, list(range(16)), 16),)
    cleared = msgspec.msgpack.encode([1.5, [old, {"type": "AllBlocksCleared"}]])
    assert read_batch("e", cleared) == KvChanged("e", is_cleared=True)


def test_blocks_of_adapters_are_left_out() -> None:
    event = msgspec.msgpack.decode(_batch(0))
    event[1][0]["lora_name"] = "adapter"
    assert read_batch("e", msgspec.msgpack.encode(event)).stored == ()


ODD: tuple[tuple[str, object], ...] = (
    ("block_hashes", [[1]]),
    ("block_hashes", 7),
    ("parent_block_hash", {}),
    ("token_ids", None),
    ("token_ids", "abc"),
    ("token_ids", [None]),
    ("token_ids", [1.5]),
    ("token_ids", [-1]),
    ("block_size", 0),
    ("block_size", 2**40),
)


@pytest.mark.parametrize(("name", "value"), ODD, ids=str)
def test_an_odd_event_is_left_out_and_what_the_endpoint_has_is_forgotten(
    name: str, value: object
) -> None:
    event = msgspec.msgpack.decode(_batch(0))
    event[1][0][name] = value
    payloads = [msgspec.msgpack.encode(event)]
    if name == "block_hashes":
        removed = {"type": "BlockRemoved", name: value}
        payloads.append(msgspec.msgpack.encode([1.5, [removed]]))
    payloads.append(b"\x91" * 5000 + b"\x01")
    heard: list[KvChanged] = []
    reader = KvEventReader("e", "", "", heard.append)
    for payload in payloads:
        reader._pass_on(payload, is_complete=True)
    assert heard == [KvChanged("e", is_complete=False)] * len(payloads)


class Publisher:
    """vLLM's publisher with its replay, on ports of this machine."""

    def __init__(self, events: Any, replay: Any) -> None:
        self._events, self._replay = events, replay
        self.kept: dict[int, bytes] = {}
        self.ports = [int(s.last_endpoint.rpartition(b":")[2]) for s in (events, replay)]

    async def publish(self, number: int, *, lost: bool = False, kept: bool = True) -> None:
        if kept:
            self.kept[number] = _batch(number)
        if not lost:
            await self._events.send_multipart([b"", number.to_bytes(8, "big"), _batch(number)])

    async def serve_replay(self) -> None:
        while True:
            client, _, start = await self._replay.recv_multipart()
            for number, payload in self.kept.items():
                if number >= int.from_bytes(start, "big"):
                    sequence = number.to_bytes(8, "big")
                    await self._replay.send_multipart([client, b"", b"", sequence, payload])
            end = (-1).to_bytes(8, "big", signed=True)
            await self._replay.send_multipart([client, b"", b"", end, b""])


@asynccontextmanager
async def publisher() -> AsyncIterator[Publisher]:
    context = zmq.asyncio.Context.instance()
    with context.socket(zmq.PUB) as events, context.socket(zmq.ROUTER) as replay:
        events.linger = replay.linger = 0
        events.bind("tcp://127.0.0.1:*")
        replay.bind("tcp://127.0.0.1:*")
        found = Publisher(events, replay)
        serving = asyncio.create_task(found.serve_replay())
        yield found
        serving.cancel()


@asynccontextmanager
async def reading(found: Publisher) -> AsyncIterator[list[KvChanged]]:
    got: list[KvChanged] = []
    events, replay = (f"tcp://127.0.0.1:{port}" for port in found.ports)
    task = asyncio.create_task(KvEventReader("e", events, replay, got.append).run())
    for _ in range(500):  # a subscription takes a moment, and PUB drops until then
        await found.publish(0)
        if got:
            break
        await asyncio.sleep(0.02)
    got.clear()
    yield got
    task.cancel()


async def test_events_that_were_missed_are_replayed_in_order() -> None:
    async with publisher() as found, reading(found) as got:
        await found.publish(1, lost=True)
        await found.publish(2, lost=True)
        await found.publish(3)
        await until(lambda: len(got) >= 3)
        firsts = [changed.stored[0].hashes[0] for changed in got if changed.stored]
        assert firsts[-3:] == [1, 2, 3]
        assert all(changed.is_complete for changed in got[-3:])


async def test_events_that_nobody_has_any_more_are_said_to_be_lost() -> None:
    async with publisher() as found, reading(found) as got:
        await found.publish(1, lost=True, kept=False)
        await found.publish(2)
        await until(lambda: got and got[-1].stored[0].hashes == (2,))
        assert not all(changed.is_complete for changed in got)


async def test_an_error_of_whom_a_replay_is_for_is_no_end_of_the_replay() -> None:
    def take(changed: KvChanged) -> None:
        if changed.stored[0].hashes == (1,):
            raise ValueError("a fault of the core")
        got.append(changed)

    got: list[KvChanged] = []
    async with publisher() as found:
        events, replay = (f"tcp://127.0.0.1:{port}" for port in found.ports)
        task = asyncio.create_task(KvEventReader("e", events, replay, take).run())
        while not got:
            await found.publish(0)
            await asyncio.sleep(0.02)
        await found.publish(1, lost=True)
        await found.publish(2)
        await until(task.done)
        with pytest.raises(ValueError, match="a fault of the core"):
            await task


async def test_an_endpoint_that_starts_again_is_believed_to_have_forgotten_everything() -> None:
    async with publisher() as found, reading(found) as got:
        await found.publish(1)
        await until(lambda: got and got[-1].stored[0].hashes == (1,))
        found.kept.clear()
        await found.publish(0)
        await until(lambda: got[-1].stored[0].hashes == (0,))
        assert not got[-1].is_complete


async def test_events_reach_the_core_and_say_how_the_ends_of_passes_are_known(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    address = await endpoints.add()
    async with publisher() as found:
        more = f"kv_events = {found.ports[0]}\nkv_replay = {found.ports[1]}"
        file = _file(tmp_path, address, more=more)
        async with picker(endpoints="", endpoints_file=file) as service:
            for number in range(500):
                await found.publish(number)
                if service.endpoints()[0].ends.value == "inferred":
                    return
                await asyncio.sleep(0.02)
    pytest.fail("no event has reached the core")


# --- steps ------------------------------------------------------------------------------


async def test_the_plug_ins_reports_make_the_ends_of_passes_exact(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    address, port = await endpoints.add(), free_port()
    topic = StepTopic(str(port), 0)
    file = _file(tmp_path, address, more=f"steps = {port}")
    async with picker(endpoints="", endpoints_file=file) as service:
        for _ in range(500):  # a subscription takes a moment, and PUB drops until then
            topic.publish(StepEnd(5.0, 0.25, 0, 3, 0, 0, 90, 100, 16))
            if service.endpoints() and service.endpoints()[0].ends is Ends.EXACT:
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail("no report has reached the core")
    topic.close()


async def test_a_gap_in_the_reports_is_told_of_and_others_messages_are_left_out() -> None:
    got: list[Stepped] = []
    topic = StepTopic(str(port := free_port()), 0)
    reading = asyncio.create_task(read_steps("e", f"tcp://127.0.0.1:{port}", got.append))
    step = StepEnd(5.0, 0.25, 64, 3, 4, 2, 90, 100, 16)
    while not got:
        topic.publish(step)
        await asyncio.sleep(0.02)
    topic._number += 3
    topic.publish(step)
    await until(lambda: sum(not each.is_complete for each in got[1:]) == 1)
    assert got[-1] == Stepped("e", 0.25, 64, 4, 2, 90, 100, 16, is_complete=False)
    reading.cancel()
    topic.close()


async def test_an_error_of_whom_a_step_is_for_is_no_unreadable_step() -> None:
    def take(step: Stepped) -> None:
        raise LookupError("a fault of the core")

    topic = StepTopic(str(port := free_port()), 0)
    reading = asyncio.create_task(read_steps("e", f"tcp://127.0.0.1:{port}", take))
    for _ in range(500):  # a subscription takes a moment, and PUB drops until then
        topic.publish(StepEnd(5.0, 0.25, 64, 3, 4, 2, 90, 100, 16))
        if reading.done():
            break
        await asyncio.sleep(0.02)
    assert reading.done()
    with pytest.raises(LookupError, match="a fault of the core"):
        await reading
    topic.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", float("nan")),
        ("seconds", float("inf")),
        ("seconds", -1.0),
        ("prefill_tokens", -1),
        ("num_waiting", 2**62),
        ("num_blocks", -5),
        ("block_size", 0),
    ],
)
def test_a_step_that_cannot_be_is_not_read(field: str, value: float) -> None:
    step = {
        **{"seconds": 0.1, "prefill_tokens": 1, "num_running": 1, "num_waiting": 0},
        **{"free_blocks": 1, "num_blocks": 2, "block_size": 16},
    }
    assert read_step("e", msgspec.msgpack.encode(step)).block_size == 16
    with pytest.raises(msgspec.ValidationError, match=field):
        read_step("e", msgspec.msgpack.encode({**step, field: value}))


# --- faults -----------------------------------------------------------------------------


async def test_a_killed_endpoint_gets_no_request_once_a_scrape_has_failed(
    endpoints: Endpoints,
) -> None:
    first, second = await endpoints.add(), await endpoints.add()
    async with picker(first, second) as service:
        await endpoints.kill(first)
        await until(lambda: {e.address: e.health for e in service.endpoints()}[first] == "down")
        async with Exchange(service.address) as exchange:
            assert named(await exchange.ask(_BODY)) == [second]


async def test_requests_still_get_an_endpoint_when_all_metrics_are_silent(
    endpoints: Endpoints,
) -> None:
    address = await endpoints.add()
    async with picker(address) as service:
        endpoints.by_address[address].metrics_silent = True
        await until(lambda: service.endpoints()[0].health == "silent")
        async with Exchange(service.address) as exchange:
            assert named(await exchange.ask(_BODY)) == [address]
            await exchange.read()
            await exchange.send(response_headers())
            await exchange.read()


async def test_a_client_that_leaves_lets_go_of_its_endpoint(endpoints: Endpoints) -> None:
    address = await endpoints.add()
    async with picker(address) as service:
        async with Exchange(service.address) as exchange:
            named(await exchange.ask(_BODY))
            assert service.endpoints()[0].num_requests == 1
        await until(lambda: service.endpoints()[0].num_requests == 0)
