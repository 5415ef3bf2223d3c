"""Requests and how their tokens are drawn."""

from __future__ import annotations

import math

from headway.errors import invalid
from headway.request import Request, SamplingParams
from protos import common_pb2 as pb
from services.runtime.wire.checks import an_id, finite

_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
)


def pack_request(request: Request) -> pb.Request:
    """One attempt at one request."""
    sampling = request.sampling
    packed = pb.SamplingParams(
        stop_token_ids=sampling.stop_token_ids,
        **{name: getattr(sampling, name) for name in _SAMPLING_FIELDS},
    )
    if sampling.num_logprobs is not None:
        packed.num_logprobs = sampling.num_logprobs
    return pb.Request(
        request_id=request.request_id,
        attempt=request.attempt,
        stream_id=request.stream_id,
        model=request.model,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=request.output_token_ids,
        sampling=packed,
        arrival_at=request.arrival_at,
        deadline_at=request.deadline_at,
        gateway_id=request.gateway_id,
        gateway_address=request.gateway_address,
        predicted_output_tokens=request.predicted_output_tokens,
        is_burst=request.is_burst,
        reasons=request.reasons,
        is_predicted=request.is_predicted,
    )


def unpack_request(packed: pb.Request) -> Request:
    """One attempt at one request, checked."""
    if not packed.deadline_at > -math.inf:
        raise invalid("deadline_at", packed.deadline_at, "a time, or infinite for none")
    predicted = finite(packed.predicted_output_tokens, "predicted_output_tokens")
    if predicted < 0.0:
        raise invalid("predicted_output_tokens", predicted, "at least 0 (unknown)")
    return Request(
        request_id=an_id(packed.request_id, "request_id"),
        attempt=packed.attempt,
        stream_id=packed.stream_id,
        gateway_id=an_id(packed.gateway_id, "gateway_id"),
        gateway_address=an_id(packed.gateway_address, "gateway_address"),
        model=an_id(packed.model, "model"),
        prompt_token_ids=tuple(packed.prompt_token_ids),
        sampling=_unpack_sampling(packed.sampling),
        arrival_at=finite(packed.arrival_at, "arrival_at"),
        deadline_at=packed.deadline_at,
        output_token_ids=tuple(packed.output_token_ids),
        predicted_output_tokens=predicted,
        is_burst=packed.is_burst,
        reasons=packed.reasons,
        is_predicted=packed.is_predicted,
    )


def _unpack_sampling(packed: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        stop_token_ids=tuple(packed.stop_token_ids),
        num_logprobs=packed.num_logprobs if packed.HasField("num_logprobs") else None,
        **{name: getattr(packed, name) for name in _SAMPLING_FIELDS},
    )
