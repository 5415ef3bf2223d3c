"""Questions to the predictor on the wire: what comes back, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.predictor.samples import RequestEnded
from headway.errors import Code, HeadwayError
from headway.forward_pass import HiddenStates
from headway.messages import FinishedRequest
from headway.request import FinishReason, StreamKey
from protos import predictor_pb2
from services.runtime import wire

KEYS = (StreamKey("g", 1), StreamKey("h", 2), StreamKey("g", 3))
HIDDEN = HiddenStates(KEYS, np.arange(6, dtype=np.float16).reshape(3, 2))


def test_a_question_round_trips() -> None:
    finished = FinishedRequest(StreamKey("g", 9), 0, 5, 40, FinishReason.STOP)
    question = wire.unpack_question(wire.pack_question("m", HIDDEN, (1, 21, 41), (finished,)))
    assert question.model == "m"
    assert question.seen.hidden.keys == KEYS
    assert question.seen.num_output_tokens == (1, 21, 41)
    assert np.array_equal(question.seen.hidden.values, HIDDEN.values)
    assert question.ended == (RequestEnded(StreamKey("g", 9), 40, FinishReason.STOP),)


def test_the_prompts_tokens_go_along_or_are_unknown() -> None:
    packed = wire.pack_question("m", HIDDEN, (1, 21, 41), (), (7, 8, 9))
    assert wire.unpack_question(packed).seen.counts.tolist() == [[7, 1], [8, 21], [9, 41]]
    unknown = wire.unpack_question(wire.pack_question("m", HIDDEN, (1, 21, 41))).seen.counts
    assert np.isnan(unknown[:, 0]).all()
    assert unknown[:, 1].tolist() == [1, 21, 41]


def test_a_state_that_is_no_number_arrives_as_it_is() -> None:
    hidden = HiddenStates(KEYS[:1], np.array([[math.nan, 1.0]], dtype=np.float16))
    question = wire.unpack_question(wire.pack_question("m", hidden, (1,)))
    assert np.isnan(question.seen.hidden.values[0, 0])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": ""}, "model"),
        ({"width": 0}, "width is 0"),
        ({"width": 70_000}, "width is 70000"),
        ({"hidden": b"123"}, "3 bytes"),
        ({"num_output_tokens": [1]}, "equal"),
        ({"num_prompt_tokens": [1]}, "num_prompt_tokens' length is 1"),
        ({"gateways": [0, 0, 9]}, "gateways is 9"),
        ({"gateway_ids": []}, "gateways"),
        ({"gateway_ids": ["g", ""]}, "gateway_id"),
        ({"stream_ids": []}, "the number of requests is 0"),
        ({"ended": [{"gateway_id": "g", "finish_reason": 0}]}, "finish_reason is 0"),
    ],
)
def test_a_bad_question_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    good: dict[str, Any] = {
        "model": "m",
        "hidden": bytes(12),
        "width": 2,
        "num_output_tokens": [1, 2, 3],
        "gateway_ids": ["g"],
        "gateways": [0, 0, 0],
        "stream_ids": [1, 2, 3],
    }
    with pytest.raises(HeadwayError, match=named):
        wire.unpack_question(predictor_pb2.PredictRequest(**{**good, **change}))


def test_an_answer_of_another_length_is_refused() -> None:
    with pytest.raises(HeadwayError, match="2 long"):
        wire.unpack_remaining(predictor_pb2.PredictReply(remaining=[1.0]), 2)


@pytest.mark.parametrize("weight", [math.nan, -0.1, 1.1])
def test_an_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(HeadwayError, match="weight"):
        wire.unpack_remaining(predictor_pb2.PredictReply(remaining=[1.0], weight=weight), 1)


def test_an_answer_without_a_weight_counts_alone() -> None:
    assert wire.unpack_remaining(predictor_pb2.PredictReply(remaining=[9.0]), 1) == ((9.0,), 1.0)


@settings(max_examples=200, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_damaged_bytes_are_a_question_or_a_refusal(changes: list[tuple[int, int]]) -> None:
    data = bytearray(wire.pack_question("m", HIDDEN, (1, 21, 41)).SerializeToString())
    for place, value in changes:
        data[place % len(data)] = value
    packed = predictor_pb2.PredictRequest()
    try:
        packed.ParseFromString(bytes(data))
        wire.unpack_question(packed)
    except DecodeError:
        pass
    except HeadwayError as error:
        assert error.code is Code.INVALID_ARGUMENT
