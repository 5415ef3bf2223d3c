"""KV events as vLLM 0.32 publishes them, for routers that stand in front of this worker.

A DP unit has a publisher of its own, as a rank of vLLM has: its ports are those that are configured
plus its number. ZMQ encrypts nothing, and the events have the tokens of prompts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from headway.blocks import BlockHash
from headway.core.worker.events import BlocksCached, TellKv
from headway.errors import Code, HeadwayError
from services.runtime.essential import end_tasks, essential

_KEPT = 10_000
"""Batches that a replay may ask for, as vLLM's ``buffer_steps``."""
_MOST_QUEUED = 100_000
"""Batches that wait for a slow subscriber, as vLLM's ``hwm``; it misses those behind them."""
_END = (-1).to_bytes(8, "big", signed=True)
_MEDIUM = "GPU"
"""vLLM's word for the memory that passes read, whatever it is."""
_ENCODE = msgspec.msgpack.Encoder()


class UnitPublisher:
    """One DP unit's events at a PUB socket, and those of the past at a ROUTER socket."""

    def __init__(
        self, unit: int, events: str, replay: str, topic: str, adapters: Sequence[str] = ()
    ) -> None:
        """Bind both; ``replay`` may be "". UNAVAILABLE where an address is taken.

        ``adapters``: the names of adapters, which vLLM numbers from 1 on.
        """
        self._unit = unit
        self._numbers = {name: number for number, name in enumerate(adapters, 1)}
        self._topic = topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=_KEPT)
        self._number = 0
        self._events: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        _bind(self._events, events, "kv_events")
        self._replaying: asyncio.Task[object] | None = None
        if replay:
            socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
            _bind(socket, replay, "kv_events_replay")
            self._replaying = essential(self._replay(socket), "replay of KV events")

    def publish(self, changes: TellKv, at: float) -> None:
        """Send one batch; ``at``: seconds since the epoch."""
        payload = _ENCODE.encode([at, _events_of(changes, self._numbers), self._unit])
        sequence = self._number.to_bytes(8, "big")
        self._number += 1
        self._kept.append((sequence, payload))
        self._events.send_multipart([self._topic, sequence, payload])  # PUB drops, and never waits

    async def _replay(self, socket: zmq.asyncio.Socket) -> None:
        with socket:
            while True:
                frames = await socket.recv_multipart()
                if len(frames) != 3 or len(frames[2]) != 8:
                    continue
                client, _, start = frames
                for sequence, payload in [each for each in self._kept if each[0] >= start]:
                    await socket.send_multipart([client, b"", self._topic, sequence, payload])
                await socket.send_multipart([client, b"", b"", _END, b""])

    async def close(self) -> None:
        """Close both sockets; what has not been sent is lost."""
        self._events.close()
        await end_tasks(self._replaying)


class KvEvents:
    """The publishers of all DP units."""

    def __init__(
        self,
        events: str,
        replay: str,
        topic: str,
        num_units: int,
        now: Callable[[], float],
        adapters: Sequence[str] = (),
    ) -> None:
        self._now = now
        self._units = [
            UnitPublisher(unit, _port_of(events, unit), _port_of(replay, unit), topic, adapters)
            for unit in range(num_units)
        ]

    def publish(self, changes: TellKv) -> None:
        """Send what has changed in one unit's prefix cache."""
        self._units[changes.unit].publish(changes, self._now())

    async def close(self) -> None:
        """Close all sockets."""
        await asyncio.gather(*(unit.close() for unit in self._units))


def _bind(socket: zmq.Socket[Any], address: str, param: str) -> None:
    socket.linger = 0
    socket.set_hwm(_MOST_QUEUED)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        message = f"{param}: cannot listen on {address} ({error.strerror}): choose another"
        raise HeadwayError(Code.UNAVAILABLE, message, param=param) from error


def _port_of(address: str, unit: int) -> str:
    """Return the address of a DP unit, as vLLM counts them."""
    if not address or not unit:
        return address
    if address.startswith("tcp://"):
        host, _, port = address.rpartition(":")
        return f"{host}:{int(port) + unit}"
    return f"{address}_dp{unit}"


def _name(name: BlockHash) -> int:
    """Return vLLM's form of a name: its last 64 bits as a number."""
    assert isinstance(name, bytes), "live workers name blocks by bytes"
    return int.from_bytes(name[-8:], "big")


def _events_of(changes: TellKv, numbers: Mapping[str, int]) -> list[dict[str, object]]:
    events: list[dict[str, object]] = []
    for change in changes.changes:
        names = [_name(name) for name in change.names]
        if not isinstance(change, BlocksCached):
            events.append({"type": "BlockRemoved", "block_hashes": names, "medium": _MEDIUM})
            continue
        event: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": None if change.parent is None else _name(change.parent),
            "token_ids": change.token_ids,
            "block_size": changes.block_size,
            "lora_id": numbers.get(change.adapter),
            "medium": _MEDIUM,
            "lora_name": change.adapter or None,
        }
        own = (change.adapter,) if change.adapter else ()
        salt = (change.salt,) if change.salt and change.parent is None else ()
        if own or salt:
            event["extra_keys"] = [(*own, *salt) or None, *[own or None] * (len(names) - 1)]
        events.append(event)
    return events
