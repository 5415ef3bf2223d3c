"""KV between workers by NIXL: the target reads the blocks out of the sender's memory.

The bytes pass through no Python, and on GPUs not through the host. What is said about them goes by
gRPC as before (``KvSource`` in place of data). The sender keeps the blocks as they are until NIXL
has told it that they were read, and then says so. Without that word a target throws away what it
has read: so a read that comes too late finds other KV, and does no harm.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headway.engine import Buffer, KvAccess, KvInMemory, KvMemory
from headway.errors import Code, HeadwayError, invalid
from headway.messages import KvSource
from services.runtime.config import is_loopback
from services.runtime.daemon_threads import DaemonThreads
from services.runtime.essential import essential
from services.runtime.logs import get_logger
from services.worker.config import WorkerConfig

_POLL, _LONGEST_POLL = 0.0002, 0.005  # seconds, doubled from look to look
_PATIENCE = 0.05  # seconds in a thread that waits for notices
_READS, _READS_OF_ONE = 32, 4
"""Reads at once, and of one sender: who hangs holds up its own, which have no end by themselves."""
_MOST_SENDERS = 256
"""Senders whose connections are kept; of those that restarted, nobody says that they have gone."""
_LONGEST_CLOSE = 5.0
"""Seconds in which a worker that stops ends its reads."""
_kept: list[NixlKv] = []
"""Ends whose reads did not end, with the memory that those may still write."""
_STOPS = "this worker stops"
_T = TypeVar("_T")


def by_grpc(why: str) -> HeadwayError:
    """Return the error after which a sender takes gRPC: NIXL cannot be had, and ``why``."""
    return HeadwayError(Code.FAILED_PRECONDITION, f"no KV by NIXL: {why}")


def open_nixl(config: WorkerConfig, kv: KvAccess) -> NixlKv | None:
    """Return a worker's end of NIXL, None where its settings do without.

    ``auto`` takes gRPC where NIXL cannot be had; ``nixl`` raises HeadwayError there.
    """
    if config.kv_transport == "grpc":
        return None
    why = _why_not(config, kv)
    if why is None:
        assert isinstance(kv, KvInMemory)
        return NixlKv(kv, config.service_id, on_loopback=is_loopback(config.listen))
    if config.kv_transport == "nixl":
        message = f"kv_transport is 'nixl', and {why}; or take auto or grpc"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="kv_transport")
    get_logger().info("kv_by_grpc", reason=why)
    return None


def _why_not(config: WorkerConfig, kv: KvAccess) -> str | None:
    if config.tls_cert is not None and not config.allow_plaintext:
        return (
            "NIXL encrypts nothing, while certificates are in use: give --allow-plaintext on a "
            "network that you trust"
        )
    if not (isinstance(kv, KvInMemory) and kv.info.kv_layout):
        return f"engine {config.engine} does not show its KV in memory"
    if find_spec("nixl") is None:
        return "NIXL is not installed: pip install 'headway[nixl]'"
    return None


def _import() -> Any:
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    from nixl import _api

    return _api


class NixlKv:
    """One process's end. NIXL has no events, so threads wait in it; each wait is one call."""

    def __init__(self, kv: KvInMemory, name: str, *, on_loopback: bool) -> None:
        """Register the engine's memory, in the thread. ``on_loopback``: others shall not reach it.

        NIXL knows peers by their names, so ``name`` is made another one at each start.
        UCX reads its settings from the environment; what is set there already stays.
        """
        if on_loopback:
            os.environ.setdefault("UCX_NET_DEVICES", "lo")
        self._kv = kv
        self._name = f"{name}-{secrets.token_hex(16)}"
        self._threads = DaemonThreads(_READS, "nixl")
        self._hearing = DaemonThreads(1, "nixl-notices")
        self._reads: Counter[bytes] = Counter()
        """Reads in progress, by the sender's description."""
        self._reading: set[asyncio.Future[str]] = set()
        """The threads' part of those reads."""
        self._closing = threading.Event()
        self._adding = threading.Lock()
        self._waited: dict[bytes, asyncio.Future[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._senders: dict[bytes, str] = {}
        self._agent: Any = None
        self._description = b""
        self._opening = asyncio.ensure_future(self._call(self._open))

    def _open(self) -> None:
        api = _import()
        locked = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        config = api.nixl_agent_config(backends=["UCX"], sync_mode=locked)
        agent = api.nixl_agent(self._name, config)
        for is_host in (False, True):
            memory = self._kv.kv_memory(is_host=is_host)
            if memory is not None:
                region = (memory.base, memory.num_bytes, memory.device or 0, "")
                agent.register_memory([region], _kind(memory.device is not None))
        self._agent, self._description = agent, agent.get_agent_metadata()

    async def opened(self) -> None:
        """Wait until it has started; HeadwayError (see ``by_grpc``) if it does not."""
        try:
            await asyncio.shield(self._opening)
        except Exception as error:  # of NIXL's own types
            raise by_grpc(f"it does not start: {error!r}") from error

    def _call(self, call: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, partial(call, *args))

    async def close(self) -> None:
        """Wait for nothing any more, end the reads, and let go of the memory.

        Blocks that are being read into may change until it returns. It takes 5 s at most: where
        NIXL has not let go by then, the memory stays as long as the process does, and the log says
        so.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        for future in self._waited.values():
            future.cancel()
        if self._watching is not None:
            self._watching.cancel()
        agent = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_CLOSE):
                agent = await self._end()
        if agent is None or agent() is not None:
            _kept.append(self)
            get_logger().error("nixl_keeps_memory", num_reads=len(self._reading))
        self._threads.shutdown()
        self._hearing.shutdown()

    async def _end(self) -> Callable[[], object | None]:
        """Let go of the agent, and return what tells whether it is still there.

        Its connections end with it, and nothing writes any more.
        """
        try:
            await asyncio.shield(self._opening)
        except Exception:  # of NIXL's own types
            return lambda: None
        if self._reading:
            await asyncio.wait(self._reading)
        agent = weakref.ref(self._agent)

        def release() -> None:
            self._agent = None
            if agent() is not None:  # frames of an error that it raised may hold it, in a circle
                gc.collect()

        await asyncio.get_running_loop().run_in_executor(self._hearing, release)
        return agent

    # --- the sender's side ------------------------------------------------------------

    async def offer(self, blocks: Sequence[int], *, from_host: bool) -> KvSource:
        """Return where the blocks are; ``read_of`` its notice waits until they have been read."""
        await self.opened()
        if self._closing.is_set():
            raise by_grpc(_STOPS)
        memory = self._memory(from_host)
        notice = secrets.token_bytes(16)
        self._waited[notice] = asyncio.get_running_loop().create_future()
        if self._watching is None or self._watching.done():
            self._watching = essential(self._watch(), "NIXL's notices", may_return=True)
        return KvSource(
            agent=self._description,
            notice=notice,
            on_gpu=memory.device is not None,
            device=memory.device or 0,
            base=memory.base,
            plane_stride=memory.plane_stride,
            block_stride=memory.block_stride,
            block_bytes=memory.block_bytes,
            num_planes=memory.num_planes,
            blocks=tuple(blocks),
        )

    async def read_of(self, notice: bytes) -> None:
        """Wait until the target has read; raise CancelledError once that is given up."""
        try:
            await self._waited[notice]
        finally:
            self.give_up(notice)

    def give_up(self, notice: bytes) -> None:
        """Wait no more; do nothing for an unknown one."""
        future = self._waited.pop(notice, None)
        if future is not None:
            future.cancel()

    async def _watch(self) -> None:
        while self._waited:
            loop = asyncio.get_running_loop()
            for notice in await loop.run_in_executor(self._hearing, self._hear):
                future = self._waited.get(notice)
                if future is not None and not future.done():
                    future.set_result(None)

    def _hear(self) -> list[bytes]:
        """Return the notices that have come, at the latest after a while."""
        until, pause = time.monotonic() + _PATIENCE, _POLL
        while True:
            arrived = self._agent.get_new_notifs()
            if arrived or time.monotonic() > until:
                return [notice for of_one in arrived.values() for notice in of_one]
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL)

    # --- the target's side ------------------------------------------------------------

    async def read(self, source: KvSource, blocks: Sequence[int], *, to_host: bool) -> None:
        """Read into own blocks; HeadwayError (see ``by_grpc``) where that cannot be.

        It is not to be cancelled: until it has ended, memory may change.
        """
        await self.opened()
        own = self._memory(to_host)
        if (own.num_planes, own.block_bytes) != (source.num_planes, source.block_bytes):
            theirs = f"{source.num_planes} planes of {source.block_bytes} B a block"
            raise by_grpc(
                f"layouts differ: {theirs} there, {own.num_planes} of {own.block_bytes} here"
            )
        if len(blocks) != len(source.blocks):
            raise invalid("the number of blocks", len(source.blocks), str(len(blocks)))
        if self._reads[source.agent] >= _READS_OF_ONE:
            raise by_grpc(f"{_READS_OF_ONE} reads of this sender have not ended")
        self._reads[source.agent] += 1
        try:
            if not to_host:
                await asyncio.to_thread(self._kv.await_writable)
            if self._closing.is_set():
                raise by_grpc(_STOPS)
            reading = self._call(self._read, source, own, np.array(blocks, np.int64))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)
            error = await reading
            if error:
                raise by_grpc(f"the sender's memory cannot be read: {error}")
        finally:
            self._reads[source.agent] -= 1
            self._reads += Counter()  # forgets senders without reads

    def _read(self, source: KvSource, own: KvMemory, blocks: NDArray[np.int64]) -> str:
        """Return why it failed, or "". An exception would keep the agent by its frames."""
        if self._closing.is_set():
            return _STOPS
        try:
            state = self._state_of(source, *_descriptors(source, own, blocks), own)
        except Exception as error:  # of NIXL's own types
            state = repr(error)
        if state == "DONE":
            return ""
        if self._closing.is_set():
            return _STOPS
        with self._adding:
            if self._reads[source.agent] == 1:  # others may be about to end well
                self._forget(source.agent)
        return state

    def _state_of(
        self, source: KvSource, here: NDArray[np.int64], there: NDArray[np.int64], own: KvMemory
    ) -> str:
        """Return NIXL's state of a read that has ended, or that is to be given up."""
        agent = self._agent
        handle = agent.initialize_xfer(
            "READ",
            agent.get_xfer_descs(here, _kind(own.device is not None)),
            agent.get_xfer_descs(there, _kind(source.on_gpu)),
            self._sender_of(source.agent),
            source.notice,
        )
        try:
            state = str(agent.transfer(handle))
            while state == "PROC" and not self._closing.wait(_POLL):
                state = agent.check_xfer_state(handle)
        finally:
            agent.release_xfer_handle(handle)
        return state

    def _sender_of(self, description: bytes) -> str:
        with self._adding:
            if description not in self._senders:
                idle = (known for known in self._senders if not self._reads[known])
                if len(self._senders) >= _MOST_SENDERS and (oldest := next(idle, None)):
                    self._forget(oldest)
                self._senders[description] = self._added(description)
            return self._senders[description]

    def _added(self, description: bytes) -> str:
        """Add a sender; one of the same name gives way, unless it is being read."""

        def add() -> str:
            name = self._agent.add_remote_agent(description)
            return name.decode() if type(name) is bytes else str(name)

        try:
            return add()
        except Exception:
            known = self._senders.items()
            same = {other: name for other, name in known if name.encode() in description}
            if not same:
                raise
            for other, name in same.items():
                if self._reads[other]:
                    message = f"another process that is being read has its agent name, {name}"
                    raise RuntimeError(message) from None
                self._forget(other)
            return add()

    def _forget(self, description: bytes) -> None:
        sender = self._senders.pop(description, None)
        if sender is not None:
            with suppress(Exception):
                self._agent.remove_remote_agent(sender)

    def _memory(self, is_host: bool) -> KvMemory:
        memory = self._kv.kv_memory(is_host=is_host)
        assert memory is not None, "the core knows how much host memory there is"
        return memory


class HeldSink:
    """A ``KvSink`` behind a read: it waits for the sender's word, which is data without bytes."""

    _is_held = False

    def feed(self, data: Buffer) -> None:
        """Take the word."""
        if len(data):
            raise invalid("the number of KV bytes", len(data), "0 behind a KvSource")
        self._is_held = True

    def finish(self) -> None:
        """Refuse what was read without it."""
        if not self._is_held:
            raise invalid("the message behind a KvSource", "none", "data without bytes")


class NixlOutlet:
    """A ``KvOutlet`` by NIXL, of one transfer."""

    name = "nixl"

    def __init__(self, nixl: NixlKv) -> None:
        self._nixl = nixl
        self._notice = b""

    async def send(
        self, blocks: Sequence[int], *, from_host: bool
    ) -> AsyncIterator[bytes | KvSource]:
        """See ``KvOutlet``."""
        if not blocks:
            return
        source = await self._nixl.offer(blocks, from_host=from_host)
        self._notice = source.notice
        yield source
        await self._nixl.read_of(source.notice)
        yield b""

    async def ready(self) -> None:
        """Wait for the process's end of NIXL; HeadwayError (see ``by_grpc``) if there is none."""
        await self._nixl.opened()

    def close(self) -> None:
        """See ``KvOutlet``."""
        self._nixl.give_up(self._notice)


def _kind(on_gpu: bool) -> str:
    return "VRAM" if on_gpu else "DRAM"


def _descriptors(
    source: KvSource, own: KvMemory, blocks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (address, bytes, device) of all pieces: here, and there in the same order.

    Blocks in a row on both sides are one piece, where a plane's blocks are next to each other.
    """
    theirs, starts = np.array(source.blocks, np.int64), np.ones(len(blocks), bool)
    if source.block_stride == own.block_stride == own.block_bytes:
        starts[1:] = (np.diff(theirs) != 1) | (np.diff(blocks) != 1)
    firsts = np.flatnonzero(starts)
    lengths = np.diff(np.append(firsts, len(blocks))) * own.block_bytes
    planes = np.arange(own.num_planes, dtype=np.int64)[:, None]

    def pieces(at: KvMemory | KvSource, first: NDArray[np.int64]) -> NDArray[np.int64]:
        places = at.base + planes * at.plane_stride + first * at.block_stride
        sizes = np.broadcast_to(lengths, places.shape)
        return np.stack([places, sizes, np.full_like(places, at.device or 0)], -1).reshape(-1, 3)

    return pieces(own, blocks[firsts]), pieces(source, theirs[firsts])
