"""Questions to the predictor: hidden states, and the requests that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.core.predictor.samples import RequestEnded, SeenStates
from headway.errors import invalid
from headway.forward_pass import HiddenStates
from headway.messages import FinishedRequest
from headway.request import StreamKey
from protos import predictor_pb2 as pb
from services.runtime.wire.checks import an_id, require_at_most
from services.runtime.wire.codec import Codec, codec_of

MAX_ROWS = 65_536
MAX_WIDTH = 65_536
_ENDED: Codec[RequestEnded] = codec_of(RequestEnded, pb.EndedRequest)
_FLOAT16 = np.dtype("<f2")


@dataclass(frozen=True, slots=True)
class Question:
    """A worker's question: states of running requests, and the requests that have ended since."""

    model: str
    seen: SeenStates
    ended: tuple[RequestEnded, ...] = ()


def pack_question(
    model: str,
    hidden: HiddenStates,
    num_output_tokens: Sequence[int],
    ended: Sequence[FinishedRequest] = (),
    num_prompt_tokens: Sequence[int] = (),
) -> pb.PredictRequest:
    """Return the states of one pass as a message."""
    places: dict[str, int] = {}
    gateways = [places.setdefault(each.gateway_id, len(places)) for each in hidden.keys]
    return pb.PredictRequest(
        model=model,
        hidden=np.ascontiguousarray(hidden.values, dtype=_FLOAT16).tobytes(),
        width=hidden.values.shape[1],
        num_output_tokens=num_output_tokens,
        num_prompt_tokens=num_prompt_tokens,
        gateway_ids=places,
        gateways=gateways,
        stream_ids=[each.stream_id for each in hidden.keys],
        ended=[
            _ENDED.pack(RequestEnded(o.key, o.num_output_tokens, o.finish_reason)) for o in ended
        ],
    )


def unpack_question(packed: pb.PredictRequest) -> Question:
    """Return the question, checked; the predictor checks the width against its model."""
    num_rows = len(packed.stream_ids)
    if not 0 < num_rows <= MAX_ROWS:
        raise invalid("the number of requests", num_rows, f"from 1 to {MAX_ROWS}")
    lengths = (len(packed.gateways), len(packed.num_output_tokens))
    if lengths != (num_rows, num_rows):
        raise invalid("the requests' arrays' lengths", (num_rows, *lengths), "equal")
    if len(packed.num_prompt_tokens) not in (0, num_rows):
        raise invalid("num_prompt_tokens' length", len(packed.num_prompt_tokens), f"{num_rows}")
    if not 0 < packed.width <= MAX_WIDTH:
        raise invalid("width", packed.width, f"from 1 to {MAX_WIDTH}")
    num_bytes = num_rows * packed.width * _FLOAT16.itemsize
    if len(packed.hidden) != num_bytes:
        raise invalid("hidden", f"{len(packed.hidden)} bytes", f"{num_bytes} bytes long")
    values = np.frombuffer(packed.hidden, dtype=_FLOAT16).reshape(num_rows, packed.width)
    hidden = HiddenStates(_keys(packed), values.astype(np.float16, copy=False))
    require_at_most(packed.ended, MAX_ROWS, "ended")
    ended = tuple(_ENDED.unpack(one) for one in packed.ended)
    seen = SeenStates(hidden, tuple(packed.num_output_tokens), tuple(packed.num_prompt_tokens))
    return Question(an_id(packed.model, "model"), seen, ended)


def unpack_remaining(packed: pb.PredictReply, num_rows: int) -> tuple[tuple[float, ...], float]:
    """Return each request's remaining tokens, and the weight against earlier predictions.

    The core refuses single values that are not lengths.
    """
    if len(packed.remaining) != num_rows:
        raise invalid("remaining", len(packed.remaining), f"{num_rows} long, as asked")
    if not 0 <= packed.weight <= 1:
        raise invalid("weight", packed.weight, "over 0 to 1, or 0 for 1")
    return tuple(packed.remaining), packed.weight or 1.0


def _keys(packed: pb.PredictRequest) -> tuple[StreamKey, ...]:
    names = [an_id(name, "gateway_id") for name in packed.gateway_ids]
    worst = max(packed.gateways)
    if worst >= len(names):
        raise invalid("gateways", worst, f"below {len(names)}")
    pairs = zip(packed.gateways, packed.stream_ids, strict=True)
    return tuple(StreamKey(names[place], stream_id) for place, stream_id in pairs)
