"""What the wire refuses, with the value and the limit; and refusals as gRPC statuses."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest

from headway.errors import Code, HeadwayError
from headway.messages import LoadReport
from headway.request import Request, SamplingParams
from protos import autoscaler_pb2, gateway_pb2, predictor_pb2, scheduler_pb2, worker_pb2
from services.runtime import wire
from services.runtime.wire.status import code_of, status_of_code

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


MANY = 65_537
KEY: Any = {"gateway_id": "g", "stream_id": 1}


def _running(**changes: Any) -> Any:
    unit = {"gateway_ids": ["g"], "gateways": [0], "stream_ids": [1], "num_tokens": [5]}
    return {"load_report": {"units": [{**unit, "remaining": [7.0], "future": [12.0]} | changes]}}


FINISHED = {"gateway_id": "g", "stream_id": 1, "finish_reason": 1}
HELD = {"gateway_id": "g", "stream_id": 1, "request_id": "r"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"request_id": ""}, "request_id"),
        ({"model": "m" * 1000}, "256 characters"),
        ({"arrival_at": math.nan}, "arrival_at"),
        ({"arrival_at": 1.7e9}, "arrival_at is 1700000000.0; it must be at most 86400 s after"),
        ({"deadline_at": math.nan}, "deadline_at"),
        ({"deadline_at": -math.inf}, "deadline_at"),
        ({"predicted_output_tokens": math.inf}, "predicted_output_tokens"),
        ({"predicted_output_tokens": -1.0}, "predicted_output_tokens"),
        ({"gateway_address": ""}, "gateway_address"),
        ({"prompt_token_ids": []}, "prompt"),
        ({"placed_on": ["v", "w", "x"]}, "the number of placed_on is 3; it must be at most 2"),
    ],
)
def test_a_bad_request_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    good = Request("r", "m", (1,), SamplingParams(), 0.0, 0, 1, "g", "g:1")
    packed = wire.REQUEST.pack(good)
    for name, value in change.items():
        packed.ClearField(name)
        packed.MergeFrom(type(packed)(**{name: value}))
    with pytest.raises(HeadwayError, match=named):
        wire.REQUEST.unpack(packed)


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
        ({"logprobs": [{"position": 0, "logprob": math.nan}]}, "logprobs is nan"),
        (
            {"logprobs": [{"position": 0, "top_token_ids": [1], "top_logprobs": [-math.inf]}]},
            "logprobs is -inf",
        ),
        ({"failures": [{"stream_id": 1, "finish_reason": 0}]}, "finish_reason is 0"),
        ({"cached": [{"position": 1, "num_tokens": 4}]}, "position is 1"),
        ({"spent": [{"position": 1, "levels_spent": 4}]}, "position is 1"),
        ({"spent": [{"position": 0, "levels_spent": 65}]}, "levels_spent is 65"),
        ({"logprobs": [{}] * MANY}, "the number of logprobs is 65537"),
        ({"logprobs": [{"prompt": [{}] * MANY}] * 2}, "the number of prompt is 131074"),
        ({"failures": [{}] * MANY}, "the number of failures is 65537"),
        ({"cached": [{}] * MANY}, "the number of cached is 65537"),
        ({"spent": [{}] * MANY}, "the number of spent is 65537"),
        ({"marks": [{}] * MANY}, "the number of marks is 65537"),
    ],
)
def test_a_bad_token_batch_is_refused_by_name(batch: dict[str, Any], named: str) -> None:
    token = {"stream_ids": [1], "indices": [0], "token_ids": [5], "finish_reasons": [0]}
    with pytest.raises(HeadwayError, match=named):
        wire.unpack_token_batch(gateway_pb2.TokenBatch(**{**token, **batch}))


@pytest.mark.parametrize(
    ("report", "named"),
    [
        ({}, "snapshot, accepted"),
        ({"snapshot": {"info": INFO | {"num_units": 0}}}, "num_units is 0"),
        ({"snapshot": {"info": INFO | {"role": 0}}}, "role is 0"),
        ({"snapshot": {"info": INFO | {"num_units": 5000}}}, "at most 4096"),
        ({"snapshot": {"info": INFO, "loads": []}}, "one for each of 1 units"),
        ({"end_forward": {"loads": [{"unit": 4096}]}}, "unit is 4096"),
        ({"end_forward": {"prefilled": [{"gateway_id": "", "stream_id": 1}]}}, "gateway_id"),
        ({"end_forward": {"answering": [{"gateway_id": "", "stream_id": 1}]}}, "gateway_id"),
        ({"end_forward": {"costs": {"base": math.nan}}}, "base is nan"),
        ({"end_forward": {"finished": [FINISHED | {"served": -math.inf}]}}, "served is -inf"),
        ({"end_forward": {"finished": [FINISHED | {"served": math.nan}]}}, "served is nan"),
        ({"snapshot": {"info": INFO, "held": [HELD | {"predicted_remaining": math.nan}]}}, "nan"),
        ({"end_forward": {"costs": {"per_request": -1.0}}}, "per_request is -1"),
        ({"end_forward": {"constants": [{"name": "T", "value": -1.0}]}}, "value is -1"),
        ({"end_forward": {"constants": [{"name": "T", "value": math.nan}]}}, "value is nan"),
        ({"end_forward": {"constants": [{"name": "T", "source": "hearsay"}]}}, "source is"),
        ({"end_forward": {"constants": [{"name": "", "source": "given"}]}}, "name is"),
        (
            {"end_forward": {"constants": [{"name": "T", "source": "given"}] * 65}},
            "65; it must be at most 64",
        ),
        ({"end_forward": {"costs": {"per_kv_token": 1e9}}}, "per_kv_token is 1000000000"),
        ({"end_forward": {"loads": [{}] * 4097}}, "the number of loads is 4097"),
        ({"end_forward": {"dispatch_ids": [1] * MANY}}, "the number of dispatch_ids is 65537"),
        ({"end_forward": {"work": [{}] * 65}}, "the number of work is 65"),
        ({"end_forward": {"prefilled": [{}] * MANY}}, "the number of prefilled is 65537"),
        ({"end_forward": {"finished": [{}] * MANY}}, "the number of finished is 65537"),
        ({"end_forward": {"admitted": [{}] * MANY}}, "the number of admitted is 65537"),
        ({"snapshot": {"info": INFO, "held": [{}] * MANY}}, "the number of held is 65537"),
        ({"snapshot": {"info": INFO, "prefixes": [{}] * 8193}}, "prefixes is 8193"),
        ({"snapshot": {"info": INFO | {"adapters": [{}] * 1025}}}, "adapters is 1025"),
        ({"handed_back": {"keys": [KEY] * MANY}}, "the number of keys is 65537"),
        ({"load_report": {"units": [{}] * 4097}}, "the number of units is 4097"),
        ({"load_report": {"units": [{"unit": 1}]}}, "in order from 0"),
        (_running(remaining=[1.0, 2.0]), "equal"),
        (_running(gateways=[1]), "gateways is 1"),
        (_running(gateway_ids=[]), "gateways is 0"),
        (_running(gateway_ids=[""]), "gateway_id"),
        (_running(remaining=[math.inf]), "remaining is inf"),
        (_running(remaining=[-1.0]), "remaining is -1"),
        (_running(future=[math.nan]), "future is nan"),
        (_running(future=[1.0, -2.0]), "future is -2"),
        (_running(future=[0.0] * 4097), "at most 4096"),
        (_running(stream_ids=[1] * 65_537), "at most 65536"),
        (
            _running(stream_ids=[1, 1], gateways=[0, 0], num_tokens=[1, 1], remaining=[1, 1]),
            "each named once",
        ),
    ],
)
def test_a_bad_report_is_refused_by_name(report: Any, named: str) -> None:
    packed = worker_pb2.WorkerToScheduler(**report)
    with pytest.raises(HeadwayError, match=named):
        wire.FROM_WORKER.unpack(packed)


@pytest.mark.parametrize(
    ("wants", "named"),
    [
        ({"load_interval": math.nan, "num_steps": 1, "step_tokens": 1}, "load_interval is nan"),
        ({"load_interval": -1.0, "num_steps": 1, "step_tokens": 1}, "load_interval is -1"),
        ({"num_steps": 0, "step_tokens": 1}, "num_steps is 0"),
        ({"num_steps": 1, "step_tokens": 2_000_000}, "step_tokens is 2000000"),
    ],
)
def test_a_hello_that_wants_nonsense_is_refused_by_name(wants: Any, named: str) -> None:
    hello = worker_pb2.ControlHello(scheduler_id="s", wants=worker_pb2.WantedReports(**wants))
    with pytest.raises(HeadwayError, match=named):
        wire.TO_WORKER.unpack(worker_pb2.SchedulerToWorker(hello=hello), now=0.0)


def test_more_messages_than_a_peer_has_reason_for_are_refused_before_they_are_read() -> None:
    dispatch: Any = {"batches": [{}] * 4097}
    orders = worker_pb2.SchedulerToWorker(dispatch=dispatch)
    with pytest.raises(HeadwayError, match="the number of batches is 4097; it must be at most"):
        wire.TO_WORKER.unpack(orders, now=0.0)
    batch: Any = {"messages": [{"cancel": KEY}] * MANY}
    with pytest.raises(HeadwayError, match="the number of messages is 65537"):
        wire.FROM_GATEWAY.unpack_all(scheduler_pb2.GatewayMessage(batch=batch), now=0.0)
    with pytest.raises(HeadwayError, match="the number of cancel_stream_ids is 65537"):
        wire.unpack_cancels(gateway_pb2.TokenControl(cancel_stream_ids=[1] * MANY))
    question: Any = {"hidden": b"ab", "width": 1, "num_output_tokens": [1], "stream_ids": [1]}
    question |= {"model": "m", "gateway_ids": ["g"], "gateways": [0], "ended": [KEY] * MANY}
    with pytest.raises(HeadwayError, match="the number of ended is 65537"):
        wire.unpack_question(predictor_pb2.PredictRequest(**question))


def test_a_running_request_that_nothing_is_known_of_is_taken() -> None:
    packed = worker_pb2.WorkerToScheduler(**_running(remaining=[math.nan]))
    report = wire.FROM_WORKER.unpack(packed)
    assert isinstance(report, LoadReport)
    assert math.isnan(report.units[0].remaining[0])


def test_token_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(HeadwayError, match="equal"):
        wire.unpack_token_batch(gateway_pb2.TokenBatch(stream_ids=[1, 2], token_ids=[5]))


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_grpc_status_and_comes_back(code: Code) -> None:
    assert wire.status_of(HeadwayError(code, "no")).value[0] == status_of_code(code)
    assert code_of(status_of_code(code)) is code
    assert code_of(grpc.StatusCode.DATA_LOSS.value[0]) is Code.INTERNAL


@pytest.mark.parametrize(
    "name", ["num_ready", "num_starting", "num_requests", "backlog_tokens", "num_standby"]
)
def test_a_fleet_of_counts_that_no_sum_would_fit_is_refused(name: str) -> None:
    most = 2**64 - 1 if name == "backlog_tokens" else 2**32 - 1
    packed = autoscaler_pb2.FleetReport()
    setattr(packed.start_up if name == "num_standby" else packed.unified, name, most)
    with pytest.raises(HeadwayError, match=f"{name} is {most}"):
        wire.unpack_fleet(packed)
