"""What the wire refuses, with the value and the limit; and refusals as gRPC statuses."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest

from headway.errors import Code, HeadwayError
from headway.request import Request, SamplingParams
from protos import gateway_pb2, worker_pb2
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
        ({"cached": [{"position": 1, "num_tokens": 4}]}, "position is 1"),
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
    ],
)
def test_a_bad_report_is_refused_by_name(report: Any, named: str) -> None:
    packed = worker_pb2.WorkerToScheduler(**report)
    with pytest.raises(HeadwayError, match=named):
        wire.unpack_from_worker(packed)


def test_token_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(HeadwayError, match="equal"):
        wire.unpack_token_batch(gateway_pb2.TokenBatch(stream_ids=[1, 2], token_ids=[5]))


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_grpc_status_and_comes_back(code: Code) -> None:
    assert wire.status_of(HeadwayError(code, "no")).value[0] == status_of_code(code)
    assert code_of(status_of_code(code)) is code
    assert code_of(grpc.StatusCode.DATA_LOSS.value[0]) is Code.INTERNAL
