"""From worker to worker."""

from __future__ import annotations

from collections.abc import Sequence

from headway.errors import invalid
from headway.messages import KvHeader, KvPart
from protos import worker_pb2 as pb
from services.runtime.wire.checks import a_unit, an_id
from services.runtime.wire.requests import pack_request, unpack_request

MAX_KV_DIMENSION = 2**31
MAX_KV_BYTES = 2**42


def pack_kv_header(header: KvHeader) -> pb.KvHeader:
    """What the KV bytes that follow are."""
    return pb.KvHeader(
        request=pack_request(header.request),
        unit=header.unit,
        num_computed_tokens=header.num_computed_tokens,
        num_bytes=header.num_bytes,
        block_size=header.block_size,
        dtype=header.dtype,
        shape=header.shape,
        more=header.more,
        fencing_token=header.fencing_token,
    )


def unpack_kv_header(packed: pb.KvHeader) -> KvHeader:
    """The same, checked as far as it says of itself; the engine checks it against the model."""
    if packed.block_size < 1:
        raise invalid("block_size", packed.block_size, "at least 1")
    if packed.num_bytes > MAX_KV_BYTES:
        raise invalid("num_bytes", packed.num_bytes, f"at most {MAX_KV_BYTES}")
    return KvHeader(
        request=unpack_request(packed.request),
        unit=a_unit(packed.unit),
        num_computed_tokens=packed.num_computed_tokens,
        num_bytes=packed.num_bytes,
        block_size=packed.block_size,
        dtype=an_id(packed.dtype, "dtype"),
        shape=_unpack_shape(packed.shape),
        more=packed.more,
        fencing_token=packed.fencing_token,
    )


def pack_kv_part(part: KvPart) -> pb.KvPart:
    """What the KV bytes that follow are, of a request that has run on."""
    return pb.KvPart(
        first_token=part.first_token,
        num_computed_tokens=part.num_computed_tokens,
        output_token_ids=part.output_token_ids,
        shape=part.shape,
        more=part.more,
    )


def unpack_kv_part(packed: pb.KvPart) -> KvPart:
    """The same, checked as far as it says of itself."""
    if not 0 < packed.first_token <= packed.num_computed_tokens:
        limit = f"from 1 to the {packed.num_computed_tokens} computed tokens"
        raise invalid("first_token", packed.first_token, limit)
    return KvPart(
        first_token=packed.first_token,
        num_computed_tokens=packed.num_computed_tokens,
        output_token_ids=tuple(packed.output_token_ids),
        shape=_unpack_shape(packed.shape, least_tokens=0),
        more=packed.more,
    )


def _unpack_shape(shape: Sequence[int], least_tokens: int = 1) -> tuple[int, ...]:
    least = (1, 1, least_tokens, 1, 1)
    if len(shape) != 5 or not all(
        low <= size < MAX_KV_DIMENSION for low, size in zip(least, shape, strict=True)
    ):
        raise invalid("shape", list(shape), "5 positive sizes")
    return tuple(shape)
