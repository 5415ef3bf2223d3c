"""The state store: every key that Headway keeps in Redis, and nothing else knows them.

All keys begin with ``headway:<cluster>:``; all times are the store's own.

| key | type | holds | lives |
| --- | --- | --- | --- |
| ``member:<service>:<id>`` | string | a member as JSON | its lease (3 s), renewed each second |
| ``members:<service>`` | set | ids that have joined; pruned when a lease has gone | for good |
| ``leader`` | string | ``<token>|<candidate id>|<address>`` | the leader's lease |
| ``fencing`` | integer | the last fencing token given out | for good |
| ``targets`` | string | replica targets as JSON | for good |

Commands of Redis 6.2 alone, so Valkey, Debian's server and managed services all serve.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from headway.errors import Code, HeadwayError, invalid
from services.runtime.logs import get_logger

MEMBER_TTL = 3.0

# KEYS: leader, fencing. ARGV: candidate id, address, ttl in ms. Returns the token, or nil
# while another candidate leads. A renewal keeps the token; every change of leader raises it.
_ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held then
  local token, candidate = string.match(held, '^(%d+)|([^|]*)|')
  if candidate ~= ARGV[1] then return nil end
  redis.call('SET', KEYS[1], token .. '|' .. ARGV[1] .. '|' .. ARGV[2], 'PX', ARGV[3])
  return tonumber(token)
end
local token = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], token .. '|' .. ARGV[1] .. '|' .. ARGV[2], 'PX', ARGV[3])
return token
"""
_RELEASE = """
local held = redis.call('GET', KEYS[1])
if held and string.match(held, '^%d+|([^|]*)|') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster."""

    service: str
    member_id: str
    address: str
    role: str = ""
    model: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leader:
    """The scheduler that leads."""

    candidate_id: str
    address: str
    fencing_token: int


class Store:
    """Calls raise HeadwayError UNAVAILABLE while the store cannot be reached."""

    def __init__(self, client: redis.Redis, cluster: str) -> None:
        self._client = client
        self._prefix = f"headway:{cluster}:"
        # register_script sends EVALSHA and loads the script again where the store forgot it
        self._acquire = client.register_script(_ACQUIRE)
        self._release = client.register_script(_RELEASE)

    @classmethod
    async def connect(cls, url: str, cluster: str, *, patience: float = 30.0) -> Store:
        """Connect, trying again for ``patience`` seconds; then UNAVAILABLE."""
        try:
            client = redis.from_url(
                url, decode_responses=True, socket_timeout=2.0, socket_connect_timeout=2.0
            )
        except ValueError as error:
            raise invalid("store", url, f"a redis:// URL ({error})") from error
        pause, said = 0.1, False
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + patience
        while True:
            try:
                await client.ping()
            except (RedisError, OSError) as error:
                if loop.time() >= give_up_at:
                    await client.aclose()
                    message = (
                        f"the store at {url} does not answer ({error}): start it, or give --store"
                    )
                    raise HeadwayError(Code.UNAVAILABLE, message) from error
                if not said:
                    get_logger().warning("store_unreachable", store=url, error=str(error))
                said = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, 2.0)
            else:
                return cls(client, cluster)

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()

    # --- membership -------------------------------------------------------------------

    async def join(self, member: Member, ttl: float = MEMBER_TTL) -> None:
        """Become, or stay, a member for ``ttl`` seconds."""
        async with _reached():
            pipeline = self._client.pipeline(transaction=False)
            key = self._key("member", member.service, member.member_id)
            pipeline.set(key, json.dumps(asdict(member)), px=int(ttl * 1000))
            pipeline.sadd(self._key("members", member.service), member.member_id)
            await pipeline.execute()

    async def leave(self, member: Member) -> None:
        """Be a member no more."""
        async with _reached():
            await self._client.delete(self._key("member", member.service, member.member_id))
            await self._client.srem(self._key("members", member.service), member.member_id)

    async def members(self, service: str) -> list[Member]:
        """Who holds a lease, by id."""
        async with _reached():
            member_ids = sorted(
                map(str, await self._client.smembers(self._key("members", service)))
            )
            if not member_ids:
                return []
            keys = [self._key("member", service, member_id) for member_id in member_ids]
            found: list[Member] = []
            for member_id, text in zip(member_ids, await self._client.mget(keys), strict=True):
                if text is None:
                    await self._client.srem(self._key("members", service), member_id)
                else:
                    found.append(_member(str(text)))
            return found

    # --- leadership -------------------------------------------------------------------

    async def acquire_leader(self, candidate_id: str, address: str, ttl: float) -> int | None:
        """The fencing token if the candidate leads for ``ttl`` seconds from now, else None."""
        if "|" in candidate_id:
            raise invalid("candidate_id", candidate_id, "without a |")
        async with _reached():
            keys = [self._key("leader"), self._key("fencing")]
            token = await self._acquire(keys, [candidate_id, address, int(ttl * 1000)])
            return None if token is None else int(token)

    async def release_leader(self, candidate_id: str) -> None:
        """Lead no more; nothing happens if another one leads."""
        async with _reached():
            await self._release([self._key("leader")], [candidate_id])

    async def leader(self) -> Leader | None:
        """Who leads."""
        async with _reached():
            text = await self._client.get(self._key("leader"))
        if text is None:
            return None
        token, candidate_id, address = str(text).split("|", 2)
        return Leader(candidate_id, address, int(token))

    # --- replica targets --------------------------------------------------------------

    async def publish_targets(self, targets: Mapping[str, Any]) -> None:
        """What the autoscaler wants."""
        async with _reached():
            await self._client.set(self._key("targets"), json.dumps(dict(targets)))

    async def read_targets(self) -> dict[str, Any] | None:
        """What the autoscaler wants; None if it has never said."""
        async with _reached():
            text = await self._client.get(self._key("targets"))
        return None if text is None else dict(json.loads(text))

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)


def _member(text: str) -> Member:
    return Member(**json.loads(text))


@asynccontextmanager
async def _reached() -> AsyncIterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        message = f"the store does not answer: {error}"
        raise HeadwayError(Code.UNAVAILABLE, message) from error
