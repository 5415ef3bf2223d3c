"""vLLM's KV events over ZMQ, with a replay of what was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import msgspec
import zmq
import zmq.asyncio
from msgspec import Meta

from headway.core.picker.events import KvChanged, StoredBlocks
from services.runtime.logs import get_logger

_DECODE = msgspec.msgpack.Decoder()
_REPLAY_PATIENCE = 2.0
"""Seconds for each message of a replay."""
_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"),
    "BlockRemoved": ("block_hashes",),
    "AllBlocksCleared": (),
}
"""Events and their fields, in the order of vLLM's older form: an array behind the event's name."""
_Message = tuple[int, bytes]
UNREADABLE = (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError)
_Hashes = tuple[bytes | int, ...]
_DEVICE = ("GPU", "CPU", None)
"""Media of the KV that passes read; vLLM on CPUs calls its own memory CPU, too."""


class _Stored(msgspec.Struct):
    """The fields of ``BlockStored`` that count here."""

    block_hashes: _Hashes
    parent_block_hash: bytes | int | None
    token_ids: list[Annotated[int, Meta(ge=0, lt=2**32)]]
    block_size: Annotated[int, Meta(ge=1, lt=2**20)]


async def messages(address: str, publisher: str, topic: bytes = b"") -> AsyncIterator[_Message]:
    """Yield numbers and payloads of what an endpoint publishes, for ever."""
    with zmq.asyncio.Context.instance().socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.subscribe(topic)
        socket.connect(publisher)
        while True:
            frames = await socket.recv_multipart()
            if len(frames) == 3 and len(frames[1]) == 8:
                yield int.from_bytes(frames[1], "big"), frames[2]
            else:
                get_logger().warning("message_unreadable", endpoint=address, publisher=publisher)


class KvEventReader:
    """The events of one endpoint; ``post`` gets them step by step.

    A gap in the sequence is asked for at ``replay``, "" for nowhere. What does not come back is
    lost, and the next event says so.
    """

    def __init__(
        self, address: str, events: str, replay: str, post: Callable[[KvChanged], None]
    ) -> None:
        self._address = address
        self._events = events
        self._replay = replay
        self._post = post
        self._last = -1
        self.num_lost = 0

    async def run(self) -> None:
        """Read until cancelled."""
        async for number, payload in messages(self._address, self._events):
            await self._take(number, payload)

    async def _take(self, number: int, payload: bytes) -> None:
        is_complete = True
        if number <= self._last:  # the endpoint has started again
            is_complete, self._last = False, number - 1
        elif number > self._last + 1:
            is_complete = await self._catch_up(number)
        if number > self._last:
            self._last = number
            self._pass_on(payload, is_complete=is_complete)

    async def _catch_up(self, number: int) -> bool:
        """Read what came before this number; return whether all of it came."""
        missing = number - self._last - 1
        try:
            if self._replay:
                await self._read_replay(number)
        except (zmq.ZMQError, TimeoutError):
            pass
        is_complete = self._last == number - 1
        if not is_complete:
            self.num_lost += number - self._last - 1
            get_logger().warning("kv_events_lost", endpoint=self._address, num_missing=missing)
        return is_complete

    async def _read_replay(self, stop: int) -> None:
        context = zmq.asyncio.Context.instance()
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self._replay)
            await socket.send_multipart([b"", (self._last + 1).to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(_REPLAY_PATIENCE):
                    frames = await socket.recv_multipart()
                if len(frames) < 2 or not frames[-1]:
                    return
                number = int.from_bytes(frames[-2], "big", signed=True)
                if not 0 <= number < stop:
                    return
                if number == self._last + 1 or self._last < 0:
                    self._last = number
                    self._pass_on(frames[-1], is_complete=True)

    def _pass_on(self, payload: bytes, *, is_complete: bool) -> None:
        try:
            changed = read_batch(self._address, payload, is_complete=is_complete)
        except UNREADABLE:
            get_logger().warning("kv_event_unreadable", endpoint=self._address)
            changed = KvChanged(self._address, is_complete=False)
        self._post(changed)


def read_batch(address: str, payload: bytes, *, is_complete: bool = True) -> KvChanged:
    """Return the events of a msgpack batch; exceptions for one that cannot be read."""
    batch = _DECODE.decode(payload)
    events = batch["events"] if isinstance(batch, dict) else batch[1]
    stored: list[StoredBlocks] = []
    removed: list[bytes | int] = []
    is_cleared = False
    for event in events:
        name, fields = _fields_of(event)
        if name == "BlockStored" and _is_plain(fields):
            stored.append(_stored(fields))
        elif name == "BlockRemoved" and fields.get("medium") in _DEVICE:
            removed += msgspec.convert(fields["block_hashes"], _Hashes)
        elif name == "AllBlocksCleared":
            is_cleared, stored, removed = True, [], []
    return KvChanged(address, tuple(stored), tuple(removed), is_cleared, is_complete)


def _fields_of(event: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(event, dict):
        return str(event.get("type", "")), event
    name = str(event[0])
    return name, dict(zip(_FIELDS.get(name, ()), event[1:], strict=False))


def _is_plain(fields: dict[str, Any]) -> bool:
    """Return whether blocks are the model's own, on the device, without images or adapters."""
    if fields.get("lora_id") is not None or fields.get("lora_name") is not None:
        return False
    return fields.get("medium") in _DEVICE and not fields.get("group_idx")


def _stored(fields: dict[str, Any]) -> StoredBlocks:
    extra = [keys for keys in fields.get("extra_keys") or () if keys]
    salt = extra[0][0] if extra and isinstance(extra[0][0], str) else ""
    said = msgspec.convert(fields, _Stored)
    return StoredBlocks(
        said.block_hashes, said.parent_block_hash, said.token_ids, said.block_size, salt
    )
