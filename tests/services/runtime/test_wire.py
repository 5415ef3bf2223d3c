"""Everything that is packed is unpacked to the same; no bytes make it crash."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import messages as m
from headway.cluster import Adapter, Role, UnitLoad, WorkerInfo
from headway.cost.costs import Source
from headway.errors import Code, HeadwayError
from headway.life.moments import Mark, MomentKind
from headway.request import (
    BadWord,
    Constraints,
    FinishReason,
    Request,
    SamplingParams,
    StreamKey,
    TokenLogprobs,
)
from headway.service_class import ServiceClass, Standing
from protos import gateway_pb2, scheduler_pb2, worker_pb2
from services.runtime import wire
from services.runtime.wire.codec import codec_of

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

biases = st.dictionaries(u32, st.floats(-100, 100), max_size=3)
constraints = st.builds(
    lambda bias, **others: Constraints(
        biased_token_ids=tuple(bias), biases=tuple(bias.values()), **others
    ),
    biases,
    grammar=texts,
    reasoning_start=token_ids,
    reasoning_end=token_ids,
    allowed_token_ids=token_ids,
    bad_words=st.lists(  # of two tokens or more: one could forbid all that are allowed
        st.builds(BadWord, st.lists(u32, min_size=2, max_size=3).map(tuple)), max_size=2
    ).map(tuple),
    reasoning_budget=st.none() | st.integers(0, 2**31 - 1),
)
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
    num_prompt_logprobs=st.none() | st.integers(0, 20),
    constraints=st.none() | constraints,
)
seconds = st.none() | st.floats(0.01, 10)
classes = st.builds(
    ServiceClass,
    ids,
    seconds,
    seconds,
    seconds,
    seconds,
    st.floats(0, 0.5),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
)
sessions = st.text(max_size=256).filter(str.isprintable)
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
    arrival_at=st.floats(-2e9, 0),
    deadline_at=times | st.just(math.inf),
    output_token_ids=token_ids,
    predicted_output_tokens=st.floats(0, 1e6),
    is_burst=st.booleans(),
    reasons=st.booleans(),
    is_predicted=st.booleans(),
    is_read=st.booleans(),
    levels_spent=st.integers(0, 64),
    served=st.floats(0, 1e6),
    cache_salt=ids | st.just(""),
    adapter=ids | st.just(""),
    session_id=sessions,
    ends_session=st.booleans(),
    standing=st.builds(Standing, ids | st.just(""), st.floats(0.01, 100), st.none() | classes),
    placed_on=st.lists(ids, max_size=2).map(tuple),
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
    kv_layout=ids | st.just(""),
    num_host_blocks=u32,
    adapters=st.lists(st.builds(Adapter, ids, ids), max_size=2).map(tuple),
)
loads = st.tuples(
    *(
        st.builds(
            UnitLoad,
            st.just(unit),
            *[u32] * 7,
            st.booleans(),
            num_yielding_blocks=u32,
            yielding_tokens=u32,
        )
        for unit in (0, 1)
    )
)
held = st.lists(
    st.builds(m.HeldRequest, keys, ids, units, u32, *[st.booleans()] * 3), max_size=3
).map(tuple)
finished = st.lists(
    st.builds(m.FinishedRequest, keys, units, u32, u32, finish_reasons), max_size=3
).map(tuple)
batches = st.lists(
    st.builds(m.UnitBatch, units, st.lists(requests, max_size=2).map(tuple)), max_size=2
).map(tuple)

wants = st.builds(
    m.WantedReports,
    st.booleans(),
    st.floats(0, math.inf),
    positive,
    st.integers(1, 10**6),
    st.booleans(),
)


@st.composite
def running_requests(draw: st.DrawFn, unit: int) -> m.RunningRequests:
    names = tuple(draw(st.lists(keys, max_size=4, unique=True)))
    count = len(names)
    tokens = st.lists(st.floats(0, 1e9), min_size=count, max_size=count).map(tuple)
    return m.RunningRequests(
        unit,
        names,
        tuple(draw(st.lists(u32, min_size=count, max_size=count))),
        draw(tokens),
        tuple(draw(st.lists(st.floats(0, 1e12), max_size=5))),
        draw(u32),
    )


to_worker = st.one_of(
    st.builds(m.ControlHello, ids, u64, wants),
    st.builds(m.Dispatch, u64, batches),
    st.builds(m.Handoff, keys, ids, ids, units, u32),
    st.builds(m.CancelStream, keys),
    st.builds(m.CancelHandoff, keys, ids),
    st.just(m.Drain()),
    st.builds(m.Tuned, st.floats(1e-9, 1e9)),
)
costs = st.none() | st.builds(m.MeasuredCosts, *[st.floats(0, 3600)] * 6)
constants = st.lists(
    st.builds(
        m.UsedConstant,
        st.sampled_from(["T", "ρ of d-0"]),
        st.floats(0),
        st.sampled_from([source.value for source in Source]),
    ),
    max_size=3,
).map(tuple)
from_worker = st.one_of(
    st.builds(m.Snapshot, infos, loads, held, st.booleans(), costs, constants=constants),
    st.builds(m.Accepted, u64),
    st.builds(
        m.EndForward,
        pass_id=u64,
        pass_time=st.floats(allow_nan=False),
        dispatch_ids=st.lists(u64, max_size=3).map(tuple),
        loads=loads,
        prefilled=held,
        finished=finished,
        answering=held,
        costs=costs,
        constants=constants,
    ),
    st.builds(m.LoadReport, st.tuples(running_requests(0), running_requests(1)), st.floats(0, 1e6)),
    st.builds(
        m.HandoffResult, keys, ids, units, ok=st.booleans(), retriable=st.booleans(), message=texts
    ),
)
to_scheduler = st.one_of(
    st.builds(m.GatewayHello, ids, ids), requests, st.builds(m.CancelStream, keys)
)
own_keys = st.builds(StreamKey, st.just("g"), u64)
to_gateway = st.one_of(
    st.builds(m.Placed, own_keys, ids, units, st.sampled_from(Role), st.just("") | ids),
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
    fencing_token=u32,
    layout=ids | st.just(""),
)


marks = st.builds(
    Mark, u64, st.sampled_from(MomentKind), st.floats(-86_400, 86_400), u32, st.text(max_size=50)
)


def test_a_mark_is_at_most_a_day_away() -> None:
    batch = m.TokenBatch("w", [], [], [], [], {}, marks=[Mark(1, MomentKind.QUEUED, 1e308)])
    (mark,) = wire.unpack_token_batch(wire.pack_token_batch(batch), now=5.0).marks
    assert mark.at == 86_405.0


@st.composite
def token_batches(draw: st.DrawFn) -> m.TokenBatch:
    count = draw(st.integers(0, 6))

    def column(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=count, max_size=count))

    marked = draw(st.sets(st.integers(0, count - 1), max_size=2)) if count else set()
    failures = st.lists(
        st.builds(m.StreamFailure, u64, finish_reasons, texts, st.sampled_from(Code)), max_size=2
    )
    return m.TokenBatch(
        worker_id=draw(ids),
        stream_ids=column(u64),
        indices=column(u32),
        token_ids=column(u32),
        finish_reasons=column(st.none() | finish_reasons),
        logprobs={position: draw(logprobs) for position in marked},
        failures=draw(failures),
        num_cached={position: draw(u32) for position in marked},
        levels_spent={position: draw(st.integers(0, 64)) for position in marked},
        marks=draw(st.lists(marks, max_size=3)) or (),
    )


@given(to_worker)
def test_orders_to_workers_round_trip(message: Any) -> None:
    assert wire.TO_WORKER.unpack(wire.TO_WORKER.pack(message, now=0.0), now=0.0) == message


@given(from_worker)
def test_workers_reports_round_trip(message: Any) -> None:
    assert wire.FROM_WORKER.unpack(wire.FROM_WORKER.pack(message)) == message


@given(to_scheduler)
def test_what_gateways_say_round_trips(message: Any) -> None:
    assert wire.FROM_GATEWAY.unpack(wire.FROM_GATEWAY.pack(message, now=0.0), now=0.0) == message


@given(to_gateway)
def test_what_gateways_hear_round_trips(message: Any) -> None:
    assert wire.TO_GATEWAY.unpack(wire.TO_GATEWAY.pack(message)) == message


@given(token_batches())
def test_token_batches_round_trip(batch: m.TokenBatch) -> None:
    assert wire.unpack_token_batch(wire.pack_token_batch(batch)) == batch


@given(token_batches(), st.sets(st.integers(0, 5)))
def test_a_batch_is_split_where_another_prompt_is_scored(
    batch: m.TokenBatch, places: set[int]
) -> None:
    batch.logprobs.update(  # type: ignore[attr-defined]  # a dict
        {n: SCORED for n in places if n < len(batch.stream_ids)}
    )
    parts = list(wire.split_token_batch(batch))
    tokens: list[tuple[Any, ...]] = []
    for part in parts:
        assert sum(bool(each.prompt) for each in part.logprobs.values()) <= 1
        tokens += _tokens(part)
    assert tokens == _tokens(batch)
    assert [f for part in parts for f in part.failures] == batch.failures
    assert [n for part in parts for n in part.marks] == list(batch.marks)
    num_scored = len(places & {*range(len(batch.stream_ids))})
    assert len(parts) == max(1, num_scored)


SCORED = TokenLogprobs(0.0, prompt=(TokenLogprobs(-1.0),))


def _tokens(batch: m.TokenBatch) -> list[tuple[Any, ...]]:
    columns = (batch.stream_ids, batch.indices, batch.token_ids, batch.finish_reasons)
    sparse = (batch.logprobs, batch.num_cached, batch.levels_spent)
    rows = enumerate(zip(*columns, strict=True))
    return [(*row, *(each.get(n) for each in sparse)) for n, row in rows]


def test_all_scores_that_a_call_may_ask_for_fit_in_a_message() -> None:
    one = TokenLogprobs(-1.0, (2**21,) * 20, (-1.0,) * 20)
    scored = TokenLogprobs(-1.0, one.top_token_ids, one.top_logprobs, (one,) * (100_000 // 21))
    batch = m.TokenBatch("w", [1], [0], [2], [None], {0: scored})
    assert wire.pack_token_batch(batch).ByteSize() < 2**20


def test_marks_are_by_the_clock_of_the_host_that_reads_them() -> None:
    mark = Mark(7, MomentKind.ADMITTED, 100.0, 12)
    batch = m.TokenBatch("w", [], [], [], [], {}, marks=[mark])
    packed = wire.pack_token_batch(batch, now=100.5)
    assert wire.unpack_token_batch(packed, now=9000.0).marks == [mark._replace(at=8999.5)]


def test_a_mark_of_a_later_version_is_left_out() -> None:
    packed = gateway_pb2.TokenBatch(worker_id="w")
    packed.marks.add(stream_id=1, kind="SANG", at=-0.1)
    packed.marks.add(stream_id=1, kind="QUEUED", at=-0.1)
    assert [mark.kind for mark in wire.unpack_token_batch(packed).marks] == [MomentKind.QUEUED]


kv_parts = st.builds(
    m.KvPart,
    first_token=st.integers(1, 100),
    num_computed_tokens=st.integers(100, 2**32 - 1),
    output_token_ids=st.lists(u32, max_size=4).map(tuple),
    shape=st.tuples(*[st.integers(1, 2**31 - 1)] * 5),
    more=st.booleans(),
)


@given(kv_parts)
def test_kv_parts_round_trip(part: m.KvPart) -> None:
    assert wire.KV.unpack(wire.KV.pack(part, now=0.0), now=0.0) == part


@given(kv_headers)
def test_kv_headers_round_trip(header: m.KvHeader) -> None:
    assert wire.KV.unpack(wire.KV.pack(header, now=0.0), now=0.0) == header


UNPACKERS: tuple[tuple[Any, Any], ...] = (
    (worker_pb2.SchedulerToWorker, partial(wire.TO_WORKER.unpack, now=0.0)),
    (worker_pb2.WorkerToScheduler, wire.FROM_WORKER.unpack),
    (worker_pb2.KvChunk, partial(wire.KV.unpack, now=0.0)),
    (worker_pb2.KvHeader, codec_of(m.KvHeader, worker_pb2.KvHeader).unpack),
    (scheduler_pb2.GatewayMessage, partial(wire.FROM_GATEWAY.unpack, now=0.0)),
    (scheduler_pb2.SchedulerMessage, wire.TO_GATEWAY.unpack),
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
        to_worker.map(partial(wire.TO_WORKER.pack, now=0.0)),
        from_worker.map(wire.FROM_WORKER.pack),
        to_scheduler.map(partial(wire.FROM_GATEWAY.pack, now=0.0)),
        to_gateway.map(wire.TO_GATEWAY.pack),
        token_batches().map(wire.pack_token_batch),
        kv_headers.map(partial(wire.KV.pack, now=0.0)),
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
