"""A running request moves between two real workers; its tokens come once, in order, unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headway.messages import Dispatch, EndForward, Handoff, HandoffResult, UnitBatch
from headway.request import Request, SamplingParams
from tests.fakes.worker_service import (
    Leader,
    Sink,
    hear,
    make_request,
    needs_nixl,
    served,
    tokens_of,
)

SEEDED = SamplingParams(
    temperature=0.9,
    top_p=0.9,
    seed=11,
    repetition_penalty=1.1,
    frequency_penalty=0.2,
    max_tokens=120,
    ignore_eos=True,
)


def asking(address: str, sampling: SamplingParams, stream_id: int = 1) -> Request:
    request = make_request(address, stream_id)
    return replace(request, prompt_token_ids=tuple(range(40, 103)), sampling=sampling)


BYTES = "headway_worker_kv_transfer_bytes_total"
TRANSFERS = "headway_worker_kv_transfers_total"


def sample(registry: CollectorRegistry, name: str) -> float:
    value = registry.get_sample_value(name)
    assert value is not None
    return value


GREEDY = replace(SEEDED, temperature=0.0)


@pytest.mark.parametrize(
    ("sampling", "target_block_size", "kv_transport"),
    [
        (SEEDED, 16, "grpc"),
        (GREEDY, 16, "grpc"),
        (SEEDED, 24, "grpc"),
        pytest.param(SEEDED, 16, "nixl", marks=needs_nixl),
        pytest.param(SEEDED, 24, "nixl", marks=needs_nixl),
    ],
)
async def test_it_goes_on_at_the_exact_token(
    store_url: str,
    cluster: str,
    sink: tuple[Sink, str],
    engine: str,
    sampling: SamplingParams,
    target_block_size: int,
    kv_transport: str,
) -> None:
    found, address = sink
    both: dict[str, Any] = {"engine": engine, "kv_transport": kv_transport}
    async with (
        served(store_url, cluster, "a", **both) as (source, source_runtime),
        served(store_url, cluster, "b", block_size=target_block_size, **both) as (
            target,
            target_runtime,
        ),
    ):
        leader, other = Leader(source, 1), Leader(target, 1)
        await leader.greet()
        await other.greet()
        request = asking(address, sampling)
        await leader.send(Dispatch(1, (UnitBatch(0, (request,)),)))
        first = await tokens_of(found, 20)
        await leader.send(Handoff(request.key, "b", target_runtime.address, 0, 1))
        result = await hear(leader, HandoffResult)
        rest = await tokens_of(found, 100)
        report = await hear(other, EndForward)
        while not report.finished:
            report = await hear(other, EndForward)
        # two streams: the last tokens of the one may be read after the first of the other
        heard = sorted(first + rest, key=lambda token: token[1])
        moved = [token for _, _, token in heard]
        assert result.ok
        assert [index for _, index, _ in heard] == list(range(120))
        assert report.finished[0].num_output_tokens == 120
        metrics = source_runtime.metrics
        assert sample(metrics, "headway_worker_move_pause_tokens_count") == 1
        assert sample(metrics, "headway_worker_move_pause_seconds_sum") > 0
        assert metrics.get_sample_value(TRANSFERS, {"end": "sent"}) == 1
        assert metrics.get_sample_value(TRANSFERS, {"end": "broken"}) == 0
        way = kv_transport if target_block_size == 16 else "grpc"  # unequal layouts
        assert (metrics.get_sample_value(BYTES, {"by": way}) or 0) > 0
        costs = "headway_worker_measured_costs"
        link = metrics.get_sample_value(costs, {"cost": "link_per_byte"})
        assert link is not None, "it has measured its link"
        assert 0 < link < 1
        alone = replace(request, stream_id=2, request_id="alone")
        await leader.send(Dispatch(2, (UnitBatch(0, (alone,)),)))
        assert [token for _, _, token in await tokens_of(found, 120)] == moved
        snapshots = [await Leader(stub, 2).greet() for stub in (source, target)]
    assert all(s.held == () and s.loads[0].num_free_blocks == 160 for s in snapshots)


@pytest.mark.parametrize("kv_transport", ["grpc", pytest.param("nixl", marks=needs_nixl)])
async def test_a_target_that_is_not_there_leaves_it_where_it_is(
    store_url: str, cluster: str, sink: tuple[Sink, str], kv_transport: str
) -> None:
    found, address = sink
    options: dict[str, Any] = {"transfer_timeout": 0.5, "kv_transport": kv_transport}
    async with served(store_url, cluster, "a", **options) as (source, runtime):
        leader = Leader(source, 1)
        await leader.greet()
        request = asking(address, SEEDED)
        await leader.send(Dispatch(1, (UnitBatch(0, (request,)),)))
        first = await tokens_of(found, 5)
        await leader.send(Handoff(request.key, "b", "127.0.0.1:1", 0, 1))
        result = await hear(leader, HandoffResult)
        rest = await tokens_of(found, 115)
        assert runtime.metrics.get_sample_value(TRANSFERS, {"end": "broken"}) == 1
    assert not result.ok
    assert [index for _, index, _ in first + rest] == list(range(120))


@pytest.mark.parametrize("kv_transport", ["grpc", pytest.param("nixl", marks=needs_nixl)])
async def test_it_moves_out_of_and_into_host_memory(
    store_url: str, cluster: str, sink: tuple[Sink, str], kv_transport: str
) -> None:
    """Two workers with room for one and a half such requests each, and host memory for the rest."""
    found, address = sink
    tight: dict[str, Any] = {
        "num_blocks": 14,
        "max_model_len": 200,
        "watermark": 0.0,
        "host_kv_gib": 0.01,
        "prefix_caching": False,
        "policy": "batching=fcfs",
        "kv_transport": kv_transport,
    }
    async with (
        served(store_url, cluster, "a", **tight) as (source, _),
        served(store_url, cluster, "b", **tight) as (target, target_runtime),
    ):
        leader, other = Leader(source, 1), Leader(target, 1)
        await leader.greet()
        await other.greet()
        requests = [asking(address, SEEDED, stream_id) for stream_id in (1, 2, 3)]
        await leader.send(Dispatch(1, (UnitBatch(0, tuple(requests[:2])),)))
        await other.send(Dispatch(1, (UnitBatch(0, (requests[2],)),)))
        report = await hear(leader, EndForward)
        while not report.loads[0].host_tokens:
            report = await hear(leader, EndForward)
        await leader.send(Handoff(requests[1].key, "b", target_runtime.address, 0, 1))
        got = await tokens_of(found, 360)
    streams = {n: [row[1:] for row in got if row[0] == n] for n in (1, 2, 3)}
    for tokens in streams.values():
        assert sorted(tokens) == sorted(streams[1])
        assert [index for index, _ in sorted(tokens)] == list(range(120))
