"""The ends of steps, published: who routes requests reads how far this engine is.

A ZMQ publisher with one message a step, as vLLM publishes its KV events: topic, sequence number,
payload. A subscriber that is slow or gone loses messages, and no step waits for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headway.errors import Code, HeadwayError
from headway_vllm.metrics import LOOPBACK

TOPIC = b"headway.step"
FORMAT = 1
"""The payload's version: fields may be added under it, none is changed or taken away."""
_MOST_UNSENT = 1024  # messages for a subscriber that does not read


class StepEnd(NamedTuple):
    """A step that has ended, and the engine behind it."""

    ended_at: float
    """Seconds since the epoch."""
    seconds: float
    """The time that the step took."""
    prefill_tokens: int
    """Tokens of prompts that it computed."""
    decode_tokens: int
    """Requests for which it computed one token behind their outputs."""
    num_running: int
    """Requests that hold blocks."""
    num_waiting: int
    """Requests that wait, for the first time or again."""
    free_blocks: int
    num_blocks: int
    block_size: int
    """Tokens of a block."""

    def packed(self, rank: int) -> bytes:
        """Return the payload: a msgpack map with a key for each field."""
        import msgspec

        payload: bytes = msgspec.msgpack.encode({"v": FORMAT, "rank": rank, **self._asdict()})
        return payload


class StepTopic:
    """The publisher; it has a socket of its own and no thread."""

    def __init__(self, address: str, rank: int) -> None:
        """Bind ``host:port``, or a port of loopback; a rank of data parallelism adds its number.

        HeadwayError (UNAVAILABLE) for an address that cannot be had.
        """
        import zmq

        host, _, port = address.rpartition(":")
        self._rank, self._number = rank, 0
        self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, _MOST_UNSENT)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, host.startswith("["))
        endpoint = f"tcp://{host or LOOPBACK}:{int(port) + rank}"
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            message = f"HEADWAY_VLLM: steps cannot be published at {endpoint}: {error}"
            raise HeadwayError(Code.UNAVAILABLE, message) from error

    def publish(self, step: StepEnd) -> None:
        """Send a step's end to whoever listens; it does not wait."""
        frames = TOPIC, self._number.to_bytes(8, "big"), step.packed(self._rank)
        self._number += 1
        self._socket.send_multipart(frames)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
