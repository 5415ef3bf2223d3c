"""A Redis in memory, on virtual time, for the live ``Store``: its scripts run in Lua, unchanged.

It may be away, full, slow, lose its data, go back to an old snapshot, answer reads with what a
replica held a moment ago, or hold garbage.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha1
from math import inf
from random import Random
from typing import Any, cast

import redis.asyncio as redis
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as LateAnswer

from headway.errors import Code, HeadwayError
from proof.vopr.loop import VirtualLoop, owner
from services.runtime import store_scripts

GARBAGE = b"\x00garbage"
_CALL_TIMEOUT = 1.0  # as ``services.runtime.store`` sets the client's
_BASE_DELAY, _JITTER = 2e-4, 1e-3
_ONE_WAY = 0.3
"""The share of lost calls that the store has carried out all the same."""
_WRITES = frozenset({"SET", "SADD", "HSET", "EXPIRE"})
_READS = frozenset({"GETRANGE", "HGETALL"})
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

Value = bytes | set[bytes] | dict[bytes, bytes]
Command = tuple[Any, ...]


class MemoryRedis:
    """All keys of one history, and its store's faults."""

    def __init__(
        self, loop: VirtualLoop, rng: Random, epoch: float, hit: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._rng = rng
        self.own: Mapping[str, Random] = {}
        """Dice of single processes, by name."""
        self._epoch = epoch
        self.hit = hit
        self._keys: dict[bytes, tuple[Value, float | None]] = {}
        self._replica: dict[bytes, tuple[Value, float | None]] | None = None
        self._snapshot: dict[bytes, tuple[Value, float | None]] = {}
        self.is_away = 0
        self.is_full = 0
        self.extra_delay = 0.0
        self.unreachable: dict[str, int] = {}
        """Partitions between a process, by name, and the store."""
        self.owners: dict[int, set[str]] = {}
        """Candidates by fencing token: each token has one."""
        self.damaged_at = -inf
        """Instant of the last damage to what it holds or reads; infinite while that lasts."""
        self._lua = _Lua(self._call)

    # --- faults -----------------------------------------------------------------------

    def wipe(self) -> None:
        """Lose everything, as a restart without persistence does."""
        self.damaged_at = self._loop.time()
        self._keys.clear()

    def snapshot(self) -> None:
        """Write what is held to disk."""
        self._snapshot = copy.deepcopy(self._keys)

    def restore(self) -> None:
        """Restart from the last snapshot."""
        self.damaged_at = self._loop.time()
        self._keys = copy.deepcopy(self._snapshot)

    def freeze_replica(self) -> None:
        """Answer reads with what is held now, until ``thaw_replica``."""
        self.damaged_at = inf
        self._replica = copy.deepcopy(self._keys)

    def thaw_replica(self) -> None:
        """Answer reads with what is held."""
        self.damaged_at = self._loop.time()
        self._replica = None

    def scribble(self, what: str) -> None:
        """Replace values whose key contains a word by garbage; their lifetime stays."""
        self.damaged_at = self._loop.time()
        for key, (value, until) in list(self._keys.items()):
            if what.encode() in key:
                spoilt: Value = GARBAGE
                if isinstance(value, dict):
                    spoilt = {**dict.fromkeys(value, GARBAGE), b"\xff": b"\xff\xfe"}
                if not isinstance(value, set):
                    self._keys[key] = spoilt, until

    def journal(self) -> Mapping[bytes, bytes]:
        """Return the leaders' records of live requests."""
        held = [v for key, (v, _) in self._keys.items() if key.endswith(b":requests")]
        return cast("dict[bytes, bytes]", held[0]) if held else {}

    def past(self, gateway_id: str) -> list[bytes]:
        """Return what is held of a gateway's past."""
        name = f":past:{gateway_id}:".encode()
        return [cast(bytes, v) for key, (v, _) in self._keys.items() if name in key]

    def usurp(self) -> None:
        """CallEnd the leader's lease at once: its holder does not know."""
        for key in [key for key in self._keys if key.endswith(b":leader")]:
            del self._keys[key]

    # --- calls ------------------------------------------------------------------------

    async def ask(self, act: Callable[[], Any]) -> Any:
        """Carry a call to the store and its answer back; both take a while, and may be lost."""
        process = owner().name
        rng = self.own.get(process, self._rng)
        there, back = self._delay(rng), self._delay(rng)
        answer: asyncio.Future[Any] = self._loop.create_future()
        said: list[Any] = []

        def acts() -> None:
            try:
                said.append(act())
            except ResponseError as error:
                said.append(error)

        if self.is_away or self.unreachable.get(process):
            self.hit("the store does not answer")
            if not self.is_away and rng.random() < _ONE_WAY:
                self._loop.later(there, acts)
            wait = _CALL_TIMEOUT if rng.random() < 0.5 else there
            self._loop.later(wait, lambda: _settle(answer, LostConnection("connection lost")))
        elif there + back > _CALL_TIMEOUT:
            self.hit("the store answers too late")
            self._loop.later(there, acts)
            self._loop.later(_CALL_TIMEOUT, lambda: _settle(answer, LateAnswer("timed out")))
        else:
            self._loop.later(there, acts)
            self._loop.later(there + back, lambda: _settle(answer, said[0]))
        return await answer

    def _delay(self, rng: Random) -> float:
        return rng.random() * (_JITTER + self.extra_delay) + _BASE_DELAY

    def run(self, command: Command) -> Any:
        """Carry out one command of a client."""
        call = partial(self._call, *command)
        return self._old(call) if str(command[0]) in _READS else call()

    def _old(self, read: Callable[[], Any]) -> Any:
        """Read what a replica holds, if that is what answers now."""
        if self._replica is None:
            return read()
        self.hit("the store answers with old data")
        kept, self._keys = self._keys, self._replica
        try:
            return read()
        finally:
            self._keys = kept

    def run_script(self, text: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Carry out a script, all of it in one step."""
        lua = partial(self._lua.run, text, [*map(_bytes, keys)], [*map(_bytes, arguments)])
        reply = self._old(lua) if text == store_scripts.ROSTER else lua()
        if text == store_scripts.ACQUIRE and reply is not None:
            self.owners.setdefault(int(reply), set()).add(str(arguments[0]))
        if text == store_scripts.WRITE_JOURNAL and not reply:
            self.hit("a deposed leader's journal is refused")
        return reply

    # --- commands ---------------------------------------------------------------------

    def _call(self, name: Any, *arguments: Any) -> Any:
        name = name.decode() if isinstance(name, bytes) else name
        if self.is_full and name in _WRITES:
            self.hit("the store is full")
            raise ResponseError("OOM command not allowed when used memory > 'maxmemory'.")
        key, *rest = [_bytes(each) for each in arguments] or [b""]
        return _COMMANDS[name](self, key, rest)

    def _find(self, key: bytes, kind: type[Any]) -> Any:
        value, until = self._keys.get(key, (None, None))
        if until is not None and until <= self._loop.time():
            del self._keys[key]
            return None
        if value is not None and not isinstance(value, kind):
            raise ResponseError(_WRONG_TYPE)
        return value

    def _time(self, key: bytes, rest: Sequence[bytes]) -> tuple[bytes, bytes]:
        now = self._epoch + self._loop.time()
        return str(int(now)).encode(), str(int(now % 1 * 1e6)).encode()

    def _getrange(self, key: bytes, rest: Sequence[bytes]) -> bytes:
        first, last = map(int, rest)
        return cast(bytes, self._find(key, bytes) or b"")[first : last + 1]

    def _set(self, key: bytes, rest: Sequence[bytes]) -> bytes:
        value, *options = rest
        until = None
        if b"PX" in options:
            until = self._loop.time() + int(options[options.index(b"PX") + 1]) / 1000
        self._keys[key] = value, until
        return b"OK"

    def _delete(self, key: bytes, rest: Sequence[bytes]) -> int:
        return int(self._keys.pop(key, None) is not None)

    def _exists(self, key: bytes, rest: Sequence[bytes]) -> int:
        return int(self._find(key, object) is not None)

    def _type(self, key: bytes, rest: Sequence[bytes]) -> Mapping[str, bytes]:
        value = self._find(key, object)
        kinds = {bytes: b"string", set: b"set", dict: b"hash", type(None): b"none"}
        return {"ok": kinds[type(value)]}

    def _srandmember(self, key: bytes, rest: Sequence[bytes]) -> list[bytes]:
        return sorted(self._find(key, set) or ())[: int(rest[0])]

    def _sadd(self, key: bytes, rest: Sequence[bytes]) -> int:
        held = self._find(key, set)
        if held is None:
            held = set()
            self._keys[key] = held, None
        held |= set(rest)
        return len(rest)

    def _srem(self, key: bytes, rest: Sequence[bytes]) -> int:
        held = self._find(key, set) or set()
        held -= set(rest)
        return len(rest)

    def _hset(self, key: bytes, rest: Sequence[bytes]) -> int:
        held = self._find(key, dict)
        if held is None:
            held = {}
            self._keys[key] = held, None
        held |= dict(zip(rest[::2], rest[1::2], strict=True))
        return len(rest) // 2

    def _hdel(self, key: bytes, rest: Sequence[bytes]) -> int:
        held = self._find(key, dict) or {}
        return sum(held.pop(each, None) is not None for each in rest)

    def _hgetall(self, key: bytes, rest: Sequence[bytes]) -> dict[bytes, bytes]:
        return dict(self._find(key, dict) or {})

    def _memory_usage(self, key: bytes, rest: Sequence[bytes]) -> int | None:
        held = self._keys.get(key)
        return held and len(held[0])

    def _expire(self, key: bytes, rest: Sequence[bytes]) -> int:
        value = self._find(key, object)
        if value is not None:
            self._keys[key] = value, self._loop.time() + int(rest[0])
        return int(value is not None)

    def _ping(self, key: bytes, rest: Sequence[bytes]) -> bytes:
        return b"PONG"


_COMMANDS: Mapping[str, Callable[[MemoryRedis, bytes, Sequence[bytes]], Any]] = {
    "TIME": MemoryRedis._time,
    "GETRANGE": MemoryRedis._getrange,
    "SET": MemoryRedis._set,
    "DEL": MemoryRedis._delete,
    "EXISTS": MemoryRedis._exists,
    "TYPE": MemoryRedis._type,
    "SRANDMEMBER": MemoryRedis._srandmember,
    "SADD": MemoryRedis._sadd,
    "SREM": MemoryRedis._srem,
    "HSET": MemoryRedis._hset,
    "HDEL": MemoryRedis._hdel,
    "HGETALL": MemoryRedis._hgetall,
    "MEMORY USAGE": MemoryRedis._memory_usage,
    "EXPIRE": MemoryRedis._expire,
    "PING": MemoryRedis._ping,
}


class MemoryClient:
    """What the live store calls of ``redis.asyncio.Redis``, in front of a ``MemoryRedis``."""

    def __init__(self, server: MemoryRedis) -> None:
        self._server = server

    def register_script(self, text: str) -> Callable[..., Any]:
        """Return a call of a script."""

        async def call(keys: Sequence[Any] = (), args: Sequence[Any] = ()) -> Any:
            run = partial(self._server.run_script, text, list(keys), list(args))
            return _decoded(await self._server.ask(run))

        return call

    def pipeline(self, transaction: bool = True) -> _Pipeline:
        """Return commands that travel together."""
        return _Pipeline(self._server)

    async def execute_command(self, *command: Any, **options: bool) -> Any:
        """Carry out a command; with ``NEVER_DECODE`` its answer stays bytes."""
        reply = await self._server.ask(partial(self._server.run, command))
        return reply if options.get("NEVER_DECODE") else _decoded(reply)

    async def set(self, key: str, value: str, px: int | None = None) -> Any:
        """Set a value, for so many milliseconds or for good."""
        lifetime = () if px is None else ("PX", px)
        return await self.execute_command("SET", key, value, *lifetime)

    async def time(self) -> Any:
        """Return the store's clock."""
        return await self.execute_command("TIME")

    async def ping(self) -> Any:
        """Answer."""
        return await self.execute_command("PING")

    async def aclose(self) -> None:
        """Do nothing."""

    def as_redis(self) -> redis.Redis:
        """Return it as what the live store takes."""
        return cast(redis.Redis, self)


class _Pipeline:
    def __init__(self, server: MemoryRedis) -> None:
        self._server = server
        self._commands: list[Command] = []

    def getrange(self, key: str, first: int, last: int) -> None:
        self._commands.append(("GETRANGE", key, first, last))

    def set(self, key: str, value: str, px: int) -> None:
        self._commands.append(("SET", key, value, "PX", px))

    def sadd(self, key: str, *values: str) -> None:
        self._commands.append(("SADD", key, *values))

    def srem(self, key: str, *values: str) -> None:
        self._commands.append(("SREM", key, *values))

    def delete(self, key: str) -> None:
        self._commands.append(("DEL", key))

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self._commands = self._commands, []

        def act() -> list[Any]:
            return [self._reply(command, raise_on_error) for command in commands]

        return [_decoded(each) for each in await self._server.ask(act)]

    def _reply(self, command: Command, raise_on_error: bool) -> Any:
        try:
            return self._server.run(command)
        except ResponseError as error:
            if raise_on_error:
                raise
            return error


class _Lua:
    """Redis's Lua: the scripts, compiled once, over the commands of a store."""

    def __init__(self, call: Callable[..., Any]) -> None:
        try:
            from lupa.lua51 import LuaRuntime, lua_type  # nothing that serves needs it
        except ImportError as error:
            message = "the store's scripts run in Lua here: `pip install lupa`"
            raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
        self._lua: Any = LuaRuntime(encoding=None, register_eval=False)
        self._kind = lua_type
        self._call = call
        self._scripts: dict[str, Any] = {}
        # kept for good: of methods that are made anew for each script, lupa takes one for another
        self._redis = self._lua.table_from(
            {b"call": self._answer, b"pcall": self._answer_or_error, b"sha1hex": _sha1hex}
        )

    def run(self, text: str, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        if text not in self._scripts:
            whole = f"function(redis, KEYS, ARGV) {text} end"
            self._scripts[text] = self._lua.eval(whole.encode())
        table = self._lua.table_from
        return self._listed(self._scripts[text](self._redis, table(keys), table(arguments)))

    def _listed(self, reply: Any) -> Any:
        """Return what a script has returned, its tables as lists."""
        return [*map(self._listed, reply.values())] if self._kind(reply) == "table" else reply

    def _answer_or_error(self, *command: Any) -> Any:
        """Return a command's answer; an error is a table."""
        try:
            return self._answer(*command)
        except ResponseError as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _answer(self, *command: Any) -> Any:
        """Return a command's answer as Lua has it: nothing is false."""
        reply = self._call(*command)
        if reply is None:
            return False
        if isinstance(reply, tuple | list):
            return self._lua.table_from(reply)
        if isinstance(reply, Mapping):
            return self._lua.table_from({_bytes(k): v for k, v in reply.items()})
        return reply


def _sha1hex(text: bytes) -> bytes:
    return sha1(text, usedforsecurity=False).hexdigest().encode()


def _settle(answer: asyncio.Future[Any], reply: Any) -> None:
    if answer.done():
        return
    if isinstance(reply, Exception):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return str(int(value)).encode()  # as Lua shows a whole number


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list | tuple):
        return [_decoded(each) for each in value]
    if isinstance(value, dict):
        return {_decoded(k): _decoded(v) for k, v in value.items()}
    return value
