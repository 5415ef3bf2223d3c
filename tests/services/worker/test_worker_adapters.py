"""Workers with LoRA adapters over real gRPC: mixed batches, cached prefixes, moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.cluster import Adapter
from headway.messages import Dispatch, Handoff, HandoffResult, UnitBatch
from headway.request import Request, SamplingParams
from tests.fakes.adapters import save_adapter
from tests.fakes.engine_rig import reference_output
from tests.fakes.openai_endpoint import openai_endpoint
from tests.fakes.worker_service import MODEL, Leader, Sink, hear, make_request, served, tokens_of

NUM_TOKENS = 40
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPT = tuple(range(40, 103))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of every product, mild enough for greedy text that does not hang on the last bit."""
    return save_adapter(tmp_path_factory.mktemp("adapter"), str(MODEL), seed=1, size=0.1)


def asking(address: str, stream_id: int, adapter: str) -> Request:
    request = make_request(address, stream_id)
    return replace(request, prompt_token_ids=PROMPT, sampling=GREEDY, adapter=adapter)


def by_stream(heard: list[tuple[int, int, int]]) -> dict[int, list[int]]:
    streams: dict[int, list[int]] = {}
    for stream_id, _, token in sorted(heard):
        streams.setdefault(stream_id, []).append(token)
    return streams


async def test_it_moves_to_a_worker_with_the_same_adapter_and_says_the_same(
    store_url: str, cluster: str, sink: tuple[Sink, str], adapter: str
) -> None:
    found, address = sink
    lora: dict[str, Any] = {"lora": {"sql": adapter}}
    async with (
        served(store_url, cluster, "a", **lora) as (source, runtime),
        served(store_url, cluster, "b", **lora) as (target, target_runtime),
        served(store_url, cluster, "c") as (plain, plain_runtime),
    ):
        leaders = [Leader(stub, 1) for stub in (source, target, plain)]
        first, second, third = [(await leader.greet()).info for leader in leaders]
        assert first.kv_kind == second.kv_kind != third.kv_kind
        assert [each.name for each in first.adapters] == ["sql"]
        batch = tuple(asking(address, n, name) for n, name in ((1, "sql"), (2, ""), (3, "sql")))
        await leaders[0].send(Dispatch(1, (UnitBatch(0, batch),)))
        heard = await tokens_of(found, 12)
        await leaders[0].send(Handoff(batch[0].key, "c", plain_runtime.address, 0, 1))
        refused = await hear(leaders[0], HandoffResult)
        assert not refused.ok
        assert "adapter is 'sql'; this worker's adapters: none" in refused.message
        await leaders[0].send(Handoff(batch[0].key, "b", target_runtime.address, 0, 1))
        assert (await hear(leaders[0], HandoffResult)).ok
        heard += await tokens_of(found, 3 * NUM_TOKENS - 12)
        again = (asking(address, 4, ""), asking(address, 5, "sql"))
        for number, request in enumerate(again, 2):  # each after what it may share has ended
            await leaders[0].send(Dispatch(number, (UnitBatch(0, (request,)),)))
            heard += await tokens_of(found, NUM_TOKENS)
        names = {s.labels["running_lora_adapters"] for s in lora_samples(runtime.metrics)}
    said = by_stream(heard)
    merged = reference_output(f"{adapter}/merged", PROMPT, NUM_TOKENS)
    assert said[1] == said[3] == said[5] == merged
    assert said[2] == said[4] == reference_output(str(MODEL), PROMPT, NUM_TOKENS) != merged
    assert found.cached[4] == found.cached[5] == 48, "each found what its own kind has left"
    assert names == {""}


def lora_samples(registry: Any) -> list[Any]:
    families = [each for each in registry.collect() if each.name == "vllm:lora_requests_info"]
    return [sample for family in families for sample in family.samples]


async def test_a_request_for_an_adapter_that_is_not_here_is_refused_by_name(
    store_url: str, cluster: str, sink: tuple[Sink, str]
) -> None:
    found, address = sink
    async with served(store_url, cluster, engine="fake") as (stub, _):
        leader = Leader(stub, 1)
        assert (await leader.greet()).info.adapters == ()
        asked = (asking(address, 1, "sql"), asking(address, 2, ""))
        await leader.send(Dispatch(1, (UnitBatch(0, asked),)))
        await tokens_of(found, NUM_TOKENS)
    assert found.failures == ["adapter is 'sql'; this worker's adapters: none"]


async def test_adapters_of_an_endpoint_are_named_to_it(
    store_url: str, cluster: str, sink: tuple[Sink, str]
) -> None:
    found, address = sink
    with openai_endpoint() as endpoint:
        endpoint.models = ["stock", "sql"]
        options: dict[str, Any] = {"engine_args": {"url": endpoint.url}, "lora": {"sql": "there"}}
        async with served(store_url, cluster, engine="openai", **options) as (stub, _):
            leader = Leader(stub, 1)
            info = (await leader.greet()).info
            assert info.adapters == (Adapter("sql", "of the endpoint"),)
            endpoint.bodies.clear()
            for number, name in enumerate(("sql", ""), 1):
                request = asking(address, number, name)
                await leader.send(Dispatch(number, (UnitBatch(0, (request,)),)))
                await tokens_of(found, NUM_TOKENS)
        assert [body["model"] for body in endpoint.bodies] == ["sql", "stock"]
