"""The ends of steps, as Headway's plug-in publishes them inside vLLM (``docs/engines.md``)."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Annotated

import msgspec
from msgspec import Meta

from headway.core.picker.events import Stepped
from services.endpoints.kv_events import UNREADABLE, messages
from services.runtime.logs import get_logger

_TOPIC = b"headway.step"
_Seconds = Annotated[float, Meta(ge=0.0, le=3600.0)]
_Count = Annotated[int, Meta(ge=0, lt=2**40)]
_BlockSize = Annotated[int, Meta(ge=1, lt=2**20)]


class _Payload(msgspec.Struct):
    """The fields that count here; others are left out."""

    seconds: _Seconds
    prefill_tokens: _Count
    num_running: _Count
    num_waiting: _Count
    free_blocks: _Count
    num_blocks: _Count
    block_size: _BlockSize


_DECODE = msgspec.msgpack.Decoder(_Payload).decode


async def read_steps(address: str, publisher: str, post: Callable[[Stepped], None]) -> None:
    """Pass on the steps of one endpoint until cancelled; a gap, or a new beginning, is told of."""
    last = -1
    async for number, payload in messages(address, publisher, _TOPIC):
        try:
            step = read_step(address, payload, is_complete=number == last + 1)
        except UNREADABLE:
            get_logger().warning("step_unreadable", endpoint=address)
            continue
        last = number
        post(step)  # what that raises is no fault of the endpoint


def read_step(address: str, payload: bytes, *, is_complete: bool = True) -> Stepped:
    """Return a step; MsgspecError for one that cannot be read."""
    step = _DECODE(payload)
    if isnan(step.seconds):
        raise msgspec.ValidationError("seconds is not a number")
    return Stepped(
        *(address, step.seconds, step.prefill_tokens, step.num_running, step.num_waiting),
        *(step.free_blocks, step.num_blocks, step.block_size, is_complete),
    )
