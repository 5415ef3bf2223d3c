"""Fuzzing of what is read from the store: any bytes under any key of the cluster."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

import redis.asyncio as redis

from headway.core.scheduler.events import Learned, SavedRequest
from headway.errors import HeadwayError
from headway.request import StreamKey
from proof.fuzz.campaign import raised
from proof.fuzz.messages import damaged
from services.local.store import LocalStore
from services.runtime.store import Store
from services.scheduler.records import (
    pack_key,
    pack_learned,
    pack_request,
    unpack_learned,
    unpack_requests,
)

_CLUSTER = "fuzz"
_KEYS = ("leader", "fencing", "targets", "member", "members", "requests", "learned")
_TEXTS = (
    b"12|scheduler-1|127.0.0.1:7000",
    b'{"service": "worker", "member_id": "w", "address": "127.0.0.1:7", "role": "decode"}',
    b'{"num_decode": 2, "num_prefill": 1, "policy": "fixed", "decided_at": 1.5}',
    b'{"buckets": [1, 2], "means": [1.5, 3.0]}',
    b"17",
    b"",
)
_KEY = StreamKey("gateway", 7)
_REQUEST = pack_request(SavedRequest(_KEY, "w", 3, 1.0, 2.0, None, False))
_LEARNED = pack_learned(Learned("m", 1, 0.1, 0.2, 0.3, 0.4))


class StoreTarget:
    """The first byte of an input chooses a key, the second its type; the rest is the value."""

    unit = 1

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._server = LocalStore()
        self._loop = asyncio.new_event_loop()
        self._client: redis.Redis = redis.from_url(self._server.url)
        self._store = self._loop.run_until_complete(Store.connect(self._server.url, _CLUSTER))

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Return how many reads were answered or refused."""
        return self._outcomes

    def make(self, rng: random.Random) -> bytes:
        """Return a key, a type and a value that is often nearly right."""
        value = rng.choice((*_TEXTS, _REQUEST, _LEARNED, rng.randbytes(rng.randint(0, 40))))
        head = bytes([rng.randrange(len(_KEYS)), rng.choice((0, 0, 0, 1, 2, 3))])
        return head + damaged(value, rng)

    def attempt(self, given: bytes) -> str:
        """Write it and read everything; a HeadwayError is the refusal that we want."""
        if len(given) < 2 or given[0] >= len(_KEYS):
            return ""
        return self._loop.run_until_complete(self._try(_KEYS[given[0]], given[1] % 4, given[2:]))

    async def _try(self, name: str, kind: int, value: bytes) -> str:
        keys = {"member": "member:worker:w", "members": "members:worker"}
        key = f"headway:{_CLUSTER}:{keys.get(name, name)}"
        await self._write(key, kind, value)
        if name == "member":
            await self._client.sadd(f"headway:{_CLUSTER}:members:worker", "w")
        try:
            return await self._read_all(name)
        finally:
            await self._client.flushall()

    async def _write(self, key: str, kind: int, value: bytes) -> None:
        if kind == 1:
            await self._client.hset(key, items=[_name_in(value), value])
        elif kind == 2:
            await self._client.sadd(key, value)
        elif kind == 3:
            await self._client.rpush(key, value)
        else:
            await self._client.set(key, value)

    async def _read_all(self, name: str) -> str:
        async def journal() -> None:
            requests, learned = await self._store.read_journal()
            unpack_requests(requests)
            unpack_learned(learned)

        async def lead() -> None:
            await self._store.acquire_leader("us", "127.0.0.1:1", 1.0)
            await self._store.release_leader("us")

        reads = {
            "leader": self._store.leader,
            "lead": lead,
            "members": lambda: self._store.members("worker"),
            "journal": journal,
            "targets": self._store.read_targets,
        }
        for reader, read in reads.items():
            try:
                await read()
            except HeadwayError:
                self._outcomes["refused"] += 1
            except Exception as error:
                return f"{name} by {reader}: {raised(error)}"
            else:
                self._outcomes["read"] += 1
        return ""

    def check(self) -> str:
        """Return nothing: each input stands alone."""
        return ""

    def close(self) -> None:
        """End the server."""

        async def close() -> None:
            await self._client.aclose()
            await self._store.close()

        self._loop.run_until_complete(close())
        self._loop.close()
        self._server.close()


def _name_in(value: bytes) -> bytes:
    """Return the name of a hash's field: a request's key, or what the value begins with."""
    return pack_key(_KEY) if len(value) % 2 else value[:6]
