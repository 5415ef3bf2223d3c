"""Everything that is packed is unpacked to the same; nonsense is refused, never crashed on."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import messages as m
from headway.cluster import Role, UnitLoad, WorkerInfo
from headway.errors import Code, HeadwayError
from headway.request import FinishReason, Request, SamplingParams, StreamKey, TokenLogprobs
from protos import gateway_pb2, scheduler_pb2, worker_pb2
from services.runtime import wire
from services.runtime.wire.status import code_of, status_of_code

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
ids = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)
times = st.floats(0, 2e9, allow_nan=False)
keys = st.builds(StreamKey, ids, u64)
units = st.integers(0, 4095)
token_ids = st.lists(u32, max_size=8).map(tuple)
finish_reasons = st.sampled_from(FinishReason)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)

sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 1000),
    min_p=st.floats(0, 1),
    seed=u64,
    repetition_penalty=st.floats(0.1, 2),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    max_tokens=st.integers(10, 1000),
    min_tokens=st.integers(0, 10),
    stop_token_ids=token_ids,
    ignore_eos=st.booleans(),
    num_logprobs=st.none() | st.integers(0, 20),
)
requests = st.builds(
    Request,
    request_id=ids,
    attempt=u32,
    stream_id=u64,
    gateway_id=ids,
    gateway_address=ids,
    model=ids,
    prompt_token_ids=st.lists(u32, min_size=1, max_size=8).map(tuple),
    sampling=sampling,
    arrival_at=times,
    deadline_at=times | st.just(math.inf),
    output_token_ids=token_ids,
    predicted_output_tokens=st.floats(0, 1e6),
)
positive = st.integers(1, 4096)
infos = st.builds(
    WorkerInfo,
    worker_id=ids,
    address=ids,
    role=st.sampled_from(Role),
    model=ids,
    num_units=st.just(2),
    chunk_tokens=positive,
    block_size=positive,
    num_blocks=positive,
    max_model_len=positive,
    kv_bytes_per_token=u64,
)
loads = st.tuples(*(st.builds(UnitLoad, st.just(unit), u32, u32, u32, u32) for unit in (0, 1)))
held = st.lists(st.builds(m.HeldRequest, keys, ids, units, u32, st.booleans()), max_size=3).map(
    tuple
)
finished = st.lists(
    st.builds(m.FinishedRequest, keys, units, u32, u32, finish_reasons), max_size=3
).map(tuple)
batches = st.lists(
    st.builds(m.UnitBatch, units, st.lists(requests, max_size=2).map(tuple)), max_size=2
).map(tuple)

to_worker = st.one_of(
    st.builds(m.ControlHello, ids, u64),
    st.builds(m.Dispatch, u64, batches),
    st.builds(m.Handoff, keys, ids, ids, units),
    st.builds(m.CancelStream, keys),
    st.just(m.Drain()),
)
from_worker = st.one_of(
    st.builds(m.Snapshot, infos, loads, held, st.booleans()),
    st.builds(m.Accepted, u64),
    st.builds(
        m.EndForward,
        pass_id=u64,
        pass_time=st.floats(allow_nan=False),
        dispatch_ids=st.lists(u64, max_size=3).map(tuple),
        loads=loads,
        prefilled=held,
        finished=finished,
    ),
    st.builds(
        m.HandoffResult, keys, ids, units, ok=st.booleans(), retriable=st.booleans(), message=texts
    ),
)
to_scheduler = st.one_of(
    st.builds(m.GatewayHello, ids, ids), requests, st.builds(m.CancelStream, keys)
)
own_keys = st.builds(StreamKey, st.just("g"), u64)
to_gateway = st.one_of(
    st.builds(m.Placed, own_keys, ids, units, st.sampled_from(Role)),
    st.builds(m.Rejected, own_keys, st.sampled_from(Code), texts, st.floats(0, 1e6)),
    st.builds(m.Lost, st.lists(own_keys, max_size=3).map(tuple), texts),
)
logprobs = st.builds(TokenLogprobs, float32, st.just((1, 2)), st.tuples(float32, float32))

kv_headers = st.builds(
    m.KvHeader,
    request=requests,
    unit=units,
    num_computed_tokens=u32,
    num_bytes=st.integers(0, 2**42),
    block_size=positive,
    dtype=ids,
    shape=st.tuples(*[positive] * 5),
)


@st.composite
def token_batches(draw: st.DrawFn) -> m.TokenBatch:
    count = draw(st.integers(0, 6))

    def column(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=count, max_size=count))

    marked = draw(st.sets(st.integers(0, count - 1), max_size=2)) if count else set()
    failures = st.lists(st.builds(m.StreamFailure, u64, finish_reasons, texts), max_size=2)
    return m.TokenBatch(
        worker_id=draw(ids),
        stream_ids=column(u64),
        indices=column(u32),
        token_ids=column(u32),
        finish_reasons=column(st.none() | finish_reasons),
        logprobs={position: draw(logprobs) for position in marked},
        failures=draw(failures),
    )


@given(to_worker)
def test_orders_to_workers_round_trip(message: Any) -> None:
    assert wire.unpack_to_worker(wire.pack_to_worker(message)) == message


@given(from_worker)
def test_workers_reports_round_trip(message: Any) -> None:
    assert wire.unpack_from_worker(wire.pack_from_worker(message)) == message


@given(to_scheduler)
def test_what_gateways_say_round_trips(message: Any) -> None:
    assert wire.unpack_to_scheduler(wire.pack_to_scheduler(message)) == message


@given(to_gateway)
def test_what_gateways_hear_round_trips(message: Any) -> None:
    assert wire.unpack_to_gateway(wire.pack_to_gateway(message), "g") == message


@given(token_batches())
def test_token_batches_round_trip(batch: m.TokenBatch) -> None:
    assert wire.unpack_token_batch(wire.pack_token_batch(batch)) == batch


@given(kv_headers)
def test_kv_headers_round_trip(header: m.KvHeader) -> None:
    assert wire.unpack_kv_header(wire.pack_kv_header(header)) == header


INFO: dict[str, Any] = {
    "worker_id": "w",
    "address": "w:1",
    "role": 1,
    "model": "m",
    "num_units": 1,
    "chunk_tokens": 1,
    "block_size": 1,
    "num_blocks": 1,
    "max_model_len": 1,
}

UNPACKERS: tuple[tuple[Any, Any], ...] = (
    (worker_pb2.SchedulerToWorker, wire.unpack_to_worker),
    (worker_pb2.WorkerToScheduler, wire.unpack_from_worker),
    (worker_pb2.KvHeader, wire.unpack_kv_header),
    (scheduler_pb2.GatewayMessage, wire.unpack_to_scheduler),
    (scheduler_pb2.SchedulerMessage, lambda packed: wire.unpack_to_gateway(packed, "g")),
    (gateway_pb2.TokenBatch, wire.unpack_token_batch),
)


def parse_and_unpack(kind: Any, unpack: Any, data: bytes) -> None:
    """A message or a refusal; nothing else may be raised."""
    packed = kind()
    try:
        packed.ParseFromString(data)
    except DecodeError:
        return
    try:
        unpack(packed)
    except HeadwayError as error:
        assert error.code is Code.INVALID_ARGUMENT


@settings(max_examples=300)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_refusal(data: bytes) -> None:
    for kind, unpack in UNPACKERS:
        parse_and_unpack(kind, unpack, data)


@settings(max_examples=400)
@given(
    packed=st.one_of(
        to_worker.map(wire.pack_to_worker),
        from_worker.map(wire.pack_from_worker),
        to_scheduler.map(wire.pack_to_scheduler),
        to_gateway.map(wire.pack_to_gateway),
        token_batches().map(wire.pack_token_batch),
        kv_headers.map(wire.pack_kv_header),
    ),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_message_with_damaged_bytes_is_a_message_or_a_refusal(
    packed: Any, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(packed.SerializeToString()) or bytearray(1)
    for place, value in changes:
        data[place % len(data)] = value
    for kind, unpack in UNPACKERS:
        parse_and_unpack(kind, unpack, bytes(data))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"request_id": ""}, "request_id"),
        ({"model": "m" * 1000}, "256 characters"),
        ({"arrival_at": math.nan}, "arrival_at"),
        ({"deadline_at": math.nan}, "deadline_at"),
        ({"deadline_at": -math.inf}, "deadline_at"),
        ({"predicted_output_tokens": math.inf}, "predicted_output_tokens"),
        ({"predicted_output_tokens": -1.0}, "predicted_output_tokens"),
        ({"gateway_address": ""}, "gateway_address"),
        ({"prompt_token_ids": []}, "prompt"),
    ],
)
def test_a_bad_request_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    good = Request("r", 0, 1, "g", "g:1", "m", (1,), SamplingParams(), 0.0)
    packed = wire.pack_request(good)
    for name, value in change.items():
        packed.ClearField(name)  # type: ignore[arg-type]  # a name of the proto
        if value:
            setattr(packed, name, value)
    with pytest.raises(HeadwayError, match=named):
        wire.unpack_request(packed)


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ({"worker_id": "w" * 257}, "256 characters"),
        ({"finish_reasons": [9]}, "finish_reasons is 9"),
        ({"logprobs": [{"position": 1}]}, "position is 1"),
        ({"logprobs": [{"position": 0, "top_token_ids": [1]}]}, "as many as"),
        (
            {"logprobs": [{"position": 0, "top_token_ids": [1] * 21, "top_logprobs": [0.0] * 21}]},
            "at most 20",
        ),
        ({"failures": [{"stream_id": 1, "finish_reason": 0}]}, "finish_reason is 0"),
    ],
)
def test_a_bad_token_batch_is_refused_by_name(batch: dict[str, Any], named: str) -> None:
    token = {"stream_ids": [1], "indices": [0], "token_ids": [5], "finish_reasons": [0]}
    with pytest.raises(HeadwayError, match=named):
        wire.unpack_token_batch(gateway_pb2.TokenBatch(**{**token, **batch}))


@pytest.mark.parametrize(
    ("report", "named"),
    [
        (worker_pb2.WorkerToScheduler(), "snapshot, accepted"),
        ({"snapshot": {"info": INFO | {"num_units": 0}}}, "num_units is 0"),
        ({"snapshot": {"info": INFO | {"role": 0}}}, "role is 0"),
        ({"snapshot": {"info": INFO | {"num_units": 5000}}}, "at most 4096"),
        ({"snapshot": {"info": INFO, "loads": []}}, "one for each of 1 units"),
        ({"end_forward": {"loads": [{"unit": 4096}]}}, "unit is 4096"),
        ({"end_forward": {"prefilled": [{"gateway_id": "", "stream_id": 1}]}}, "gateway_id"),
    ],
)
def test_a_bad_report_is_refused_by_name(report: Any, named: str) -> None:
    with pytest.raises(HeadwayError, match=named):
        packed = worker_pb2.WorkerToScheduler(**report) if isinstance(report, dict) else report
        wire.unpack_from_worker(packed)


def test_token_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(HeadwayError, match="equal"):
        wire.unpack_token_batch(gateway_pb2.TokenBatch(stream_ids=[1, 2], token_ids=[5]))


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_grpc_status_and_comes_back(code: Code) -> None:
    assert wire.status_of(HeadwayError(code, "no")).value[0] == status_of_code(code)
    assert code_of(status_of_code(code)) is code
    assert code_of(grpc.StatusCode.DATA_LOSS.value[0]) is Code.INTERNAL
