"""Whatever happens to a worker, requests end once with the right tokens and blocks are kept."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.blocks import BlockHash, block_names, blocks_for
from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.forward_pass import ForwardPass, PassItem
from headway.messages import CancelStream, ChangeRole, Dispatch, UnitBatch
from headway.policies import registry
from headway.request import Request, SamplingParams, StreamKey
from headway.service_class import Standing
from tests.fakes.paged import EOS, WorkerHarness, expected_output
from tests.fakes.requests import a_request

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 20), st.integers(1, 12)),
        st.tuples(st.just("pass"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("role"), st.integers(0, 1), st.just(0)),
    ),
    max_size=40,
)


STOPS = (5, 12, 19, 26, 33, 40, 47)


def request_of(stream_id: int, num_prompt: int, max_tokens: int) -> Request:
    prompt = ((stream_id % 3 * 7 + i) % 50 + 1 for i in range(num_prompt))
    stops = STOPS if stream_id % 2 else ()
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop_token_ids=stops)
    return a_request(stream_id, prompt, sampling)


@settings(max_examples=400, deadline=None)
@given(
    steps=STEPS,
    block_size=st.sampled_from([1, 2, 4]),
    num_tokens_of_memory=st.integers(34, 60),
    chunk=st.integers(1, 24),
    num_units=st.integers(1, 3),
    batching=st.sampled_from(list(registry.REGISTRY["batching"])),
    host_tokens=st.sampled_from([0, 20, 500]),
    max_running=st.sampled_from([0, 2]),
    caches=st.sampled_from(["nothing", "prompts", "all"]),
    runs_ahead=st.booleans(),
    swaps_beside=st.booleans(),
    host_prefixes=st.booleans(),
)
def test_every_request_ends_once_with_the_tokens_of_an_endless_memory(
    steps: list[tuple[str, int, int]],
    block_size: int,
    num_tokens_of_memory: int,
    chunk: int,
    num_units: int,
    batching: str,
    host_tokens: int,
    max_running: int,
    caches: str,
    runs_ahead: bool,
    swaps_beside: bool,
    host_prefixes: bool,
) -> None:
    num_blocks = num_tokens_of_memory // block_size

    def hashes_of(request: Request) -> list[BlockHash]:
        return block_names(request.prompt_token_ids, block_size)

    info = WorkerInfo(
        "w", "w:1", Role.UNIFIED, "m", num_units, chunk, block_size, num_blocks, 1000, 8
    )
    policy = registry.make("batching", batching)
    limits = WorkerSettings(
        host_tokens=host_tokens,
        host_prefixes=host_prefixes,
        max_running=max_running,
        prefix_caching=caches == "all",
        runs_ahead=runs_ahead,
        swaps_beside=swaps_beside,
    )
    hook = hashes_of if caches == "prompts" else None
    core = WorkerCore(info, [EOS], policy, limits, hashes_of=hook)
    worker = WorkerHarness(core, block_size)
    worker.model.shared = caches != "nothing"
    requests: dict[int, Request] = {}
    cancelled: set[int] = set()
    for name, first, second in steps:
        if name == "submit":
            request = request_of(len(requests), first, second)
            requests[request.stream_id] = request
            batch = UnitBatch(request.stream_id % num_units, (request,))
            worker.post(Dispatch(request.stream_id, (batch,)))
        elif name == "pass":
            for _ in range(first):
                worker.run_pass()
        elif name == "role":
            worker.post(ChangeRole((Role.UNIFIED, Role.CONVERTIBLE)[first]))
        elif first in requests:
            cancelled.add(first)
            worker.post(CancelStream(StreamKey("g", first)))
    worker.run_all()
    for stream_id, request in requests.items():
        tokens = worker.tokens.get(stream_id, {})
        expected = expected_output(request.prompt_token_ids, request.sampling.max_tokens)
        last = next((n for n, t in enumerate(expected) if t in request.sampling.stop_token_ids), -1)
        expected = expected[: last + 1] if last >= 0 else expected
        assert [tokens[i] for i in range(len(tokens))] == expected[: len(tokens)]
        if stream_id not in cancelled:
            assert len(tokens) == len(expected)
            assert worker.ends[stream_id] == ["stop" if last >= 0 else "length"]
    assert worker.core.num_held == 0
    assert all(load.num_free_blocks == num_blocks for load in worker.core.loads)
    assert all(load.host_tokens == 0 for load in worker.core.loads)
    for unit in worker.core.units:
        unit.host.settle()
        assert unit.host.num_free == host_tokens // block_size
        assert not unit.saving
        assert not unit.host.prefixes.num_busy


PROMPTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=12),  # four tokens each
        st.integers(0, 3),  # passes before it comes
    ),
    min_size=2,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(
    load=PROMPTS,
    chunk=st.integers(1, 40),
    runs_ahead=st.booleans(),
    tenants=st.integers(1, 2),
    host_tokens=st.sampled_from([0, 400]),
)
def test_no_pass_computes_a_block_twice_and_who_waits_for_one_ends(
    load: list[tuple[list[int], int]], chunk: int, runs_ahead: bool, tenants: int, host_tokens: int
) -> None:
    info = WorkerInfo("w", "w:1", Role.UNIFIED, "m", 1, chunk, 4, 400, 1000, 8)
    limits = WorkerSettings(prefix_caching=True, runs_ahead=runs_ahead, host_tokens=host_tokens)
    core = WorkerCore(info, [EOS], registry.make("batching", "fcfs"), limits)
    worker = WorkerHarness(core, 4)
    worker.model.shared = True
    for stream_id, (parts, num_passes) in enumerate(load):
        prompt = [1 + part for part in parts for _ in range(4)]
        request = replace(
            request_of(stream_id, 1, 3),
            prompt_token_ids=(*prompt, 3),
            standing=Standing(tenant=str(stream_id % tenants)),
        )
        worker.post(Dispatch(stream_id, (UnitBatch(0, (request,)),)))
        for _ in range(num_passes):
            worker.run_pass()
    worker.run_all()
    assert len(worker.ends) == len(load)
    for action in worker.log:
        # Who is not served while its tenant's turn is over holds up nobody.
        if isinstance(action, ForwardPass) and tenants == 1:
            computed = [name for item in action.items for name in blocks_of(item)]
            assert len(computed) == len(set(computed))


def blocks_of(item: PassItem) -> list[tuple[int, ...]]:
    """Full blocks of its prompt that a pass computes at least a part of, with all before them."""
    prompt = item.prompt_token_ids
    stop = min(item.start + len(item.token_ids), len(prompt))
    places = range(item.start // 4, blocks_for(stop, 4))
    return [tuple(prompt[: 4 * n + 4]) for n in places if 4 * n + 4 <= len(prompt)]
