"""The ends of steps, as Headway's plug-in publishes them inside vLLM (``docs/engines.md``)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headway.core.picker.events import Stepped
from services.endpoints.kv_events import messages
from services.runtime.logs import get_logger

_TOPIC = b"headway.step"


class _Payload(msgspec.Struct):
    """The fields that count here; others are left out."""

    seconds: float
    prefill_tokens: int
    num_running: int
    num_waiting: int
    free_blocks: int
    num_blocks: int
    block_size: int


_DECODE = msgspec.msgpack.Decoder(_Payload).decode


async def read_steps(address: str, publisher: str, post: Callable[[Stepped], None]) -> None:
    """Pass on the steps of one endpoint until cancelled; a gap, or a new beginning, is told of."""
    last = -1
    async for number, payload in messages(address, publisher, _TOPIC):
        try:
            post(read_step(address, payload, is_complete=number == last + 1))
            last = number
        except msgspec.MsgspecError:
            get_logger().warning("step_unreadable", endpoint=address)


def read_step(address: str, payload: bytes, *, is_complete: bool = True) -> Stepped:
    """Return a step; MsgspecError for one that cannot be read."""
    step = _DECODE(payload)
    return Stepped(
        *(address, step.seconds, step.prefill_tokens, step.num_running, step.num_waiting),
        *(step.free_blocks, step.num_blocks, step.block_size, is_complete),
    )
