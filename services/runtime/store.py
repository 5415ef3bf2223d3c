"""The state store: every key that Headway keeps in Redis, and nothing else knows them.

All keys begin with ``headway:<cluster>:``; all lifetimes are the store's own
(``docs/state-store.md`` says who writes what and what its loss means).

| key | type | holds | lives |
| --- | --- | --- | --- |
| ``member:<service>:<id>`` | string | a member as JSON | its lease (3 s), renewed each second |
| ``members:<service>`` | set | ids that have joined; pruned when a lease has gone | for good |
| ``leader`` | string | ``<token>|<candidate id>|<address>`` | the leader's lease |
| ``fencing`` | integer | the last fencing token given out | for good |
| ``requests`` | hash | key of a live attempt → record of the leader's | an hour after the last |
| ``learned`` | hash | model name → record of what its dispatching has measured | for good |
| ``targets`` | string | replica targets as JSON | for good |
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as LostConnection

from headway.errors import Code, HeadwayError, invalid
from services.runtime import store_scripts
from services.runtime.config import without_password
from services.runtime.logs import get_logger

MEMBER_TTL = 3.0
MAX_FENCING_TOKEN = 2**53 - 1
"""The greatest whole number that the scripts' arithmetic holds exactly."""
_LEASE = re.compile(
    r"(?P<token>[0-9]{1,16})\|(?P<candidate>[!-{}~]{1,256})\|(?P<address>[!-~]{1,256})"
)
_LONGEST_TEXT, _LONGEST_ID = 4096, 256  # bytes
_LONGEST_VALUE, _LONGEST_TARGETS, _LONGEST_PAST = 2**16, 2**20, 2**22
"""Bytes of a value. A longer one is read as far as this and a byte more, so it is unreadable."""
_MOST_JOURNAL = 2**28
"""Bytes that the store takes for a hash of the journal; about 70 are a live request's."""
MOST_MEMBERS = 4096
"""Of one service. While the roster names more, its readers keep the members that they know."""
_MOST_REMEMBERED = 1024  # unreadable values that were logged
_JOURNAL_TTL_S = 3600  # longer than any request takes
_CALL_TIMEOUT = 1.0  # a lease of 3 s outlives two calls to a store that hangs
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster."""

    service: str
    member_id: str
    address: str
    role: str = ""
    model: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)


_MEMBER_FIELDS = tuple(each.name for each in fields(Member))


@dataclass(frozen=True, slots=True)
class Leader:
    """The scheduler that leads."""

    candidate_id: str
    address: str
    fencing_token: int


class Store:
    """A connection to the store. Calls raise HeadwayError UNAVAILABLE while it is unreachable.

    The next call may succeed. The caller decides what an outage means; it is logged here, once.
    """

    def __init__(self, client: redis.Redis, cluster: str) -> None:
        self._client = client
        self._prefix = f"headway:{cluster}:"
        self._unreadable: dict[str, str] = {}
        self.num_unreadable = 0
        """Values that were found unreadable since the start; each is logged once."""
        self._answering = True
        # register_script sends EVALSHA and loads the script again where the store forgot it
        self._acquire = client.register_script(store_scripts.ACQUIRE)
        self._release = client.register_script(store_scripts.RELEASE)
        self._join = client.register_script(store_scripts.JOIN)
        self._roster = client.register_script(store_scripts.ROSTER)
        self._prune = client.register_script(store_scripts.PRUNE)
        self._write_journal = client.register_script(store_scripts.WRITE_JOURNAL)

    @classmethod
    async def connect(cls, url: str, cluster: str, *, patience: float = 30.0) -> Store:
        """Connect, trying again for ``patience`` seconds; then UNAVAILABLE.

        FAILED_PRECONDITION at once if the store refuses the password or its certificate is not
        of the authority that is trusted: waiting would not help.
        """
        try:
            client = redis.from_url(
                url,
                decode_responses=True,
                encoding_errors="surrogateescape",  # garbage is read, and refused by its reader
                socket_timeout=_CALL_TIMEOUT,
                socket_connect_timeout=_CALL_TIMEOUT,
                # once, at once: a connection from before a restart of the store is no outage
                retry=Retry(NoBackoff(), 1, supported_errors=(LostConnection,)),
            )
            pool: Any = client.connection_pool
            pool.make_connection()  # which reads what is behind the question mark
        except (ValueError, TypeError, AttributeError, RedisError) as error:
            raise invalid("store", without_password(url), f"a redis:// URL ({error})") from error
        try:
            await _answers(client, without_password(url), patience)
        except BaseException:
            await client.aclose()
            raise
        return cls(client, cluster)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    # --- membership -------------------------------------------------------------------

    async def join(self, member: Member, ttl: float = MEMBER_TTL) -> Member | None:
        """Join, or renew the membership, for ``ttl`` seconds; return what was there before."""
        key = self._key("member", member.service, member.member_id)
        text = json.dumps({name: getattr(member, name) for name in _MEMBER_FIELDS})
        with self._reached():
            keys = [key, self._key("members", member.service)]
            px = int(ttl * 1000)
            before = await self._join(keys, [text, px, member.member_id, _LONGEST_VALUE])
        return _member(member.service, member.member_id, before)

    async def leave(self, member: Member) -> None:
        """Leave."""
        with self._reached():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.delete(self._key("member", member.service, member.member_id))
            pipeline.srem(self._key("members", member.service), member.member_id)
            await pipeline.execute()

    async def members(self, service: str) -> list[Member]:
        """Return the members that hold a lease, by id.

        RESOURCE_EXHAUSTED while the roster names more than ``MOST_MEMBERS``. Each call takes
        out, of so many, those without a lease and ids that no member has.
        """
        roster = self._key("members", service)
        with self._reached():
            member_ids, *too_long = await self._roster([roster], [MOST_MEMBERS + 1, _LONGEST_ID])
            for beginning in too_long:
                self.unreadable(roster, beginning)
            if not member_ids:
                return []
            member_ids.sort()
            keys = [self._key("member", service, member_id) for member_id in member_ids]
            members: list[Member] = []
            gone: dict[str, str] = {}
            leases = zip(member_ids, keys, await self._texts(keys, _LONGEST_VALUE), strict=True)
            for member_id, key, text in leases:
                if text is None:
                    gone[key] = member_id
                elif (member := _member(service, member_id, text)) is not None:
                    members.append(member)
                else:
                    self.unreadable(key, text)
            if gone:
                await self._prune([roster, *gone], [*gone.values()])
        if len(member_ids) > MOST_MEMBERS:
            self.unreadable(roster, f"more than {MOST_MEMBERS} members")
            message = f"{roster} names more than {MOST_MEMBERS} members: delete it in the store"
            raise HeadwayError(Code.RESOURCE_EXHAUSTED, message)
        return members

    # --- leadership -------------------------------------------------------------------

    async def acquire_leader(
        self, candidate_id: str, address: str, ttl: float, *, seen: int = 0
    ) -> int | None:
        """Return the fencing token if the candidate leads for the next ``ttl`` seconds, else None.

        Calling it again renews the lease under the same token. Every change of leader raises the
        token above the last one, and above the newest that the candidate has ``seen``: a store that
        loses its data may have forgotten the last one. Two candidates get different tokens even
        from a store that goes back to an old snapshot. It stays below 2^53. An unreadable lease or
        token counts as none.
        """
        if "|" in candidate_id or _LEASE.fullmatch(f"1|{candidate_id}|{address}") is None:
            limit = "a name and an address in visible ASCII, a name without a |"
            raise invalid("candidate_id and address", (candidate_id, address), limit)
        with self._reached():
            keys = [self._key("leader"), self._key("fencing")]
            token = await self._acquire(keys, [candidate_id, address, int(ttl * 1000), seen])
            return None if token is None else int(token)

    async def release_leader(self, candidate_id: str) -> None:
        """Give up the lead; do nothing if another candidate leads."""
        with self._reached():
            await self._release([self._key("leader")], [candidate_id])

    async def leader(self) -> Leader | None:
        """Return the leader; None if there is none, or if its lease cannot be read."""
        key = self._key("leader")
        text = await self._text(key, _LONGEST_VALUE)
        if text is None:
            return None
        lease = _leader(text)
        if lease is None:
            self.unreadable(key, text)
        return lease

    async def now(self) -> float:
        """Return the store's clock: seconds since the epoch, the same for all hosts."""
        with self._reached():
            seconds, microseconds = await self._client.time()
            return float(seconds) + float(microseconds) / 1e6

    # --- the leader's journal ---------------------------------------------------------

    async def write_journal(
        self,
        fencing_token: int,
        requests: Mapping[bytes, bytes],
        removed: Sequence[bytes],
        learned: Mapping[bytes, bytes],
    ) -> bool:
        """Write all of it atomically; return False, and write nothing, if a newer leader was
        elected."""
        arguments: list[int | bytes] = [fencing_token, _JOURNAL_TTL_S, len(requests), len(removed)]
        arguments += chain.from_iterable(requests.items())
        arguments += removed
        arguments += chain.from_iterable(learned.items())
        keys = [self._key("fencing"), self._key("requests"), self._key("learned")]
        with self._reached():
            return bool(await self._write_journal(keys, arguments))

    async def read_journal(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """Return the last leaders' records: (of requests, of models), by name."""
        return await self._hash(self._key("requests")), await self._hash(self._key("learned"))

    # --- saved state of services ------------------------------------------------------

    async def publish_targets(self, targets: Mapping[str, Any]) -> None:
        """Save the autoscaler's targets."""
        with self._reached():
            await self._client.set(self._key("targets"), json.dumps(dict(targets)))

    async def read_targets(self) -> dict[str, Any] | None:
        """Return the autoscaler's targets; None before the first, or if they cannot be read."""
        key = self._key("targets")
        text = await self._text(key, _LONGEST_TARGETS)
        if text is None:
            return None
        targets = _object(text)
        if targets is None:
            self.unreadable(key, text)
        return targets

    async def save_past(self, gateway_id: str, place: int, text: str, ttl: float) -> None:
        """Save a minute of a gateway's past, for ``ttl`` seconds."""
        with self._reached():
            key = self._key("past", gateway_id, str(place))
            await self._client.set(key, text, px=int(ttl * 1000))

    async def read_past(self, gateway_id: str, num_places: int) -> dict[str, str]:
        """Return what was saved of a gateway's past, by key."""
        keys = [self._key("past", gateway_id, str(place)) for place in range(num_places)]
        with self._reached():
            texts = await self._texts(keys, _LONGEST_PAST)
        return {key: text for key, text in zip(keys, texts, strict=True) if text is not None}

    def unreadable(self, key: str, value: object) -> None:
        """Count a value that cannot be read; log it when it is first seen."""
        self.num_unreadable += 1
        text = ascii(value)[:200]
        if self._unreadable.get(key) != text:
            if len(self._unreadable) >= _MOST_REMEMBERED:
                self._unreadable.clear()
            self._unreadable[key] = text
            get_logger().warning("store_value_unreadable", key=key, value=text)

    async def _texts(self, keys: Sequence[str], longest: int) -> list[str | None]:
        """Return values; None for an empty one, none at all, or one of another type."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.getrange(key, 0, longest)
        texts = await pipeline.execute(raise_on_error=False)
        for text in texts:
            if isinstance(text, Exception) and not _is_of_another_type(text):
                raise text
        return [text if isinstance(text, str) and text else None for text in texts]

    async def _text(self, key: str, longest: int) -> str | None:
        """Return a value; None for an empty one, none at all, or one of another type."""
        return await self._read("GETRANGE", key, 0, longest) or None

    async def _hash(self, key: str) -> dict[bytes, bytes]:
        """Return a hash; empty if there is none, or if it is larger than a journal can be."""
        size = await self._read("MEMORY USAGE", key, "SAMPLES", 0)
        if size is not None and size > _MOST_JOURNAL:
            self.unreadable(key, f"{size} bytes, more than {_MOST_JOURNAL}")
            return {}
        return dict(await self._read("HGETALL", key, NEVER_DECODE=True) or {})

    async def _read(self, command: str, key: str, *arguments: Any, **options: bool) -> Any:
        """Return a command's reply; None from a value of another type."""
        call: Any = self._client.execute_command
        with self._reached():
            try:
                return await call(command, key, *arguments, **options)
            except ResponseError as error:
                if not _is_of_another_type(error):
                    raise
                self.unreadable(key, "a value of another type")
                return None

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Convert the client's errors to ours; log the start and the end of an outage, once."""
        try:
            yield
        except (RedisError, OSError) as error:
            _heed_cancel()
            if self._answering:
                get_logger().warning("store_lost", error=str(error))
            self._answering = False
            message = f"the store does not answer: {error}"
            raise HeadwayError(Code.UNAVAILABLE, message) from error
        _heed_cancel()
        if not self._answering:
            get_logger().info("store_reached")
        self._answering = True


def _is_of_another_type(error: Exception) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


def _heed_cancel() -> None:
    """Raise a cancellation that the client swallowed during a call."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _answers(client: redis.Redis, safe_url: str, patience: float) -> None:
    """Return once the store answers; log the outage once, not at each attempt."""
    loop, pause, said = asyncio.get_running_loop(), _SHORTEST_PAUSE, False
    give_up_at = loop.time() + patience
    while True:
        try:
            await client.ping()
        except (RedisError, OSError) as error:
            if reason := _distrust(error):
                message = f"the store at {safe_url} {reason}"
                raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
            if loop.time() >= give_up_at:
                message = (
                    f"the store at {safe_url} does not answer ({error}): start it, or give --store"
                )
                raise HeadwayError(Code.UNAVAILABLE, message) from error
            if not said:
                get_logger().warning("store_unreachable", store=safe_url, error=str(error))
            said = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            if said:
                get_logger().info("store_reached", store=safe_url)
            return


def _distrust(error: BaseException | None) -> str:
    """Return why one side does not trust the other; "" if it was something else."""
    while error is not None:
        if isinstance(error, AuthenticationError):
            return f"refuses the password ({error}): see HEADWAY_STORE"
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message
            return f"shows a certificate that is not trusted ({reason}): see ?ssl_ca_certs=FILE"
        error = error.__cause__ or error.__context__
    return ""


def _leader(text: str) -> Leader | None:
    """Return the leader whose lease this is; None if the text is none."""
    parts = _LEASE.fullmatch(text)
    if parts is None or int(parts["token"]) > MAX_FENCING_TOKEN:
        return None
    return Leader(parts["candidate"], parts["address"], int(parts["token"]))


@lru_cache(maxsize=512)  # polls read the same words again and again
def _member(service: str, member_id: str, text: str) -> Member | None:
    """Return this member; None if the text is none. Ignore fields of newer versions."""
    said = _object(text) or {}
    detail = said.get("detail", {})
    texts = [value for name, value in said.items() if name in _MEMBER_FIELDS and name != "detail"]
    if not isinstance(detail, dict):
        return None
    texts += [*detail.keys(), *detail.values()]
    if not all(isinstance(each, str) and _is_text(each) for each in texts):
        return None
    is_it = (said.get("service"), said.get("member_id")) == (service, member_id)
    if not (is_it and said.get("address")):
        return None
    return Member(**{name: said[name] for name in _MEMBER_FIELDS if name in said})


def _is_text(text: str) -> bool:
    """Return whether it can be sent on: without half a surrogate pair, not too long."""
    try:
        return len(text.encode()) <= _LONGEST_TEXT
    except UnicodeEncodeError:
        return False


def _object(text: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else None
