"""``grpc.aio`` in memory: channels and servers over the wires of a history.

What the live services see is what grpc.aio shows: a call without a connection fails as UNAVAILABLE
unless it waits, a broken one cancels its handler, a refusal comes after what was sent before it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import grpc

from proof.vopr.loop import ProcessLife, owner
from proof.vopr.network import CallEnd, MemoryConnection, MemoryNetwork, Pipe

Metadata = tuple[tuple[str, Any], ...]
_FIRST_PORT = 50_000
_SHORTEST_BACKOFF, _LONGEST_BACKOFF, _GROWTH = 0.1, 2.0, 1.6
"""Seconds between attempts to connect, as ``services.runtime.channel`` sets them."""
_FINISHED = "RPC already finished."


class Status(NamedTuple):
    """How a call has ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Metadata = ()


_OK = Status(grpc.StatusCode.OK)
_CANCELLED = Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")


@dataclass(slots=True)
class Ports:
    """The servers of a history by port."""

    wires: MemoryNetwork
    servers: dict[int, MemoryServer] = field(default_factory=dict)
    _next: int = _FIRST_PORT

    def take(self, server: MemoryServer, wanted: int) -> int:
        """Bind a port, 0 for a free one; RuntimeError where it is taken."""
        port = wanted or self._next
        self._next += not wanted
        taken = self.servers.get(port)
        if taken is not None and taken.life.is_alive:
            raise RuntimeError(f"port {port} is taken")
        self.servers[port] = server
        return port

    def close(self, life: ProcessLife) -> None:
        """Close the ports of a process."""
        for port in [port for port, server in self.servers.items() if server.life is life]:
            del self.servers[port]

    @contextmanager
    def instead_of_grpc(self) -> Iterator[None]:
        """Give these channels and servers to whoever asks grpc.aio."""

        def channel(address: str, options: Sequence[tuple[str, Any]] = (), **_: Any) -> Any:
            return MemoryChannel(self, address, options)

        def server(interceptors: Sequence[Any] = (), **_: Any) -> Any:
            return MemoryServer(self, interceptors)

        with (
            mock.patch.object(grpc.aio, "insecure_channel", channel),
            mock.patch.object(grpc.aio, "server", server),
        ):
            yield


# --- the server's side ------------------------------------------------------------------


class MemoryServer:
    """A ``grpc.aio.Server`` of the process in which it was made."""

    def __init__(self, ports: Ports, interceptors: Sequence[Any]) -> None:
        self.life = owner()
        self.is_listening = False
        self.calls: dict[ServedCall, None] = {}
        self._ports = ports
        self._guards = interceptors
        self._handlers: list[Any] = []
        self._connections: list[MemoryConnection] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """See ``grpc.aio.Server``."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: the generic handlers name the same methods."""

    def add_insecure_port(self, address: str) -> int:
        """See ``grpc.aio.Server``."""
        return self._ports.take(self, int(address.rpartition(":")[2]))

    async def start(self) -> None:
        """See ``grpc.aio.Server``."""
        self.is_listening = True

    async def stop(self, grace: float | None) -> None:
        """See ``grpc.aio.Server``: no new calls; the running ones end within ``grace`` seconds."""
        self.is_listening = False
        self._ports.close(self.life) if not self._others() else None
        loop = asyncio.get_running_loop()
        until = loop.time() + (grace or 0.0)
        while self.calls and loop.time() < until:  # noqa: ASYNC110 (as grpc does)
            await asyncio.sleep(0.01)
        for connection in self._connections:
            connection.close()

    def _others(self) -> bool:
        servers = self._ports.servers.values()
        return any(s is not self and s.life is self.life and s.is_listening for s in servers)

    def connected(self, connection: MemoryConnection) -> None:
        """Take a new connection."""
        self._connections = [each for each in self._connections if each.is_open]
        self._connections.append(connection)

    async def find(self, method: str, metadata: Metadata) -> Any:
        """Return the handler of a method, behind the guards; None if there is none."""
        details = _Details(method, metadata)

        async def handler(details: Any) -> Any:
            return next((h for each in self._handlers if (h := each.service(details))), None)

        for guard in self._guards:
            return await guard.intercept_service(handler, details)
        return await handler(details)


class _Details(NamedTuple):
    method: str
    invocation_metadata: Metadata


class ServedCall:
    """A call as its server has it: a task of the server's process, and the context it gets."""

    def __init__(
        self,
        server: MemoryServer,
        connection: MemoryConnection,
        method: str,
        metadata: Metadata,
        up: Pipe,
        down: Pipe,
    ) -> None:
        self._server = server
        self._connection = connection
        self._method = method
        self._metadata = metadata
        self._up = up
        self._down = down
        self._status = _OK
        server.calls[self] = None
        connection.join(self, server.life)
        up.on_cut = self._cut
        self._task = server.life.loop.start(server.life, self._serve())

    def broke(self, reason: str) -> None:
        """Cancel the handler; its requests end."""
        self._up.finish(CallEnd(_CANCELLED, is_cut=True))

    def _cut(self) -> None:
        # Which of the two a handler learns first is not said: its end, or that of its requests.
        if self._connection.rng.random() < 0.5:
            self._task.cancel()
        else:
            self._connection.wires.loop.later(0.0, self._task.cancel)

    async def _serve(self) -> None:
        status, is_cut = _OK, False
        try:
            await self._answer()
        except grpc.aio.AbortError:
            status = self._status
        except asyncio.CancelledError:
            status, is_cut = Status(grpc.StatusCode.CANCELLED, "cancelled by the server"), True
        except Exception as error:
            status = Status(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
        finally:
            self._server.calls.pop(self, None)
            self._connection.leave(self, self._server.life)
            self._down.end(status, is_cut=is_cut)

    async def _answer(self) -> None:
        handler = await self._server.find(self._method, self._metadata)
        if handler is None:
            await self.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if handler.request_streaming:
            request: Any = self._requests(handler.request_deserializer)
        else:
            first = await self._up.read()
            if isinstance(first, CallEnd):
                raise asyncio.CancelledError
            request = handler.request_deserializer(first)
        kinds = {True: "stream", False: "unary"}
        kind = f"{kinds[handler.request_streaming]}_{kinds[handler.response_streaming]}"
        behaviour = getattr(handler, kind)
        if not handler.response_streaming:
            await self._down.write(handler.response_serializer(await behaviour(request, self)))
            return
        assert inspect.isasyncgenfunction(behaviour), "the guard makes generators"
        replies = behaviour(request, self)
        try:
            async for reply in replies:
                await self._down.write(handler.response_serializer(reply))
        finally:
            await replies.aclose()

    async def _requests(self, parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        while not isinstance(data := await self._up.read(), CallEnd):
            yield parse(data)

    # --- what a handler asks of its context -------------------------------------------

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing: Metadata = ()
    ) -> None:
        """See ``grpc.aio.ServicerContext``."""
        self._status = Status(code, details, trailing)
        raise grpc.aio.AbortError

    def invocation_metadata(self) -> Metadata:
        """See ``grpc.aio.ServicerContext``."""
        return self._metadata

    def auth_context(self) -> dict[str, Any]:
        """Return nothing: there are no certificates."""
        return {}

    def peer(self) -> str:
        """Return the caller's address."""
        return f"ipv4:127.0.0.1:{self._connection.caller.name}"


# --- the client's side ------------------------------------------------------------------


class MemoryChannel:
    """A ``grpc.aio.Channel`` of the process in which it was made: one connection, made anew."""

    def __init__(self, ports: Ports, address: str, options: Sequence[tuple[str, Any]]) -> None:
        self.life = owner()
        self._ports = ports
        self._wires = ports.wires
        self._port = int(address.rpartition(":")[2])
        agent = dict(options).get("grpc.primary_user_agent", "")
        self.metadata: Metadata = (("user-agent", agent),) if agent else ()
        self._connection: MemoryConnection | None = None
        self._server: MemoryServer | None = None
        self._backoff = _SHORTEST_BACKOFF
        self._retry_at = 0.0
        self._attempt = asyncio.Lock()
        self.calls: dict[DialledCall, None] = {}

    async def __aenter__(self) -> MemoryChannel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """See ``grpc.aio.Channel``."""
        for call in list(self.calls):
            call.cancel()
        if self._connection is not None:
            self._connection.close()

    async def channel_ready(self) -> None:
        """See ``grpc.aio.Channel``."""
        await self.connect(waits=True)

    async def connect(self, *, waits: bool) -> tuple[MemoryConnection, MemoryServer]:
        """Return the connection and its server; UNAVAILABLE if it fails and nobody ``waits``."""
        loop = self._wires.loop
        while True:
            async with self._attempt:
                if self._connection is not None and self._connection.is_open:
                    assert self._server is not None
                    return self._connection, self._server
                if loop.time() >= self._retry_at:
                    endpoint = await self._dial()
                    if endpoint is not None:
                        self._backoff = _SHORTEST_BACKOFF
                        self._connection, self._server = endpoint
                        return endpoint
                    self._retry_at = loop.time() + self._backoff
                    self._backoff = min(self._backoff * _GROWTH, _LONGEST_BACKOFF)
            if not waits:
                raise _error(Status(grpc.StatusCode.UNAVAILABLE, "failed to connect"))
            await asyncio.sleep(max(self._retry_at - loop.time(), 1e-3))

    async def _dial(self) -> tuple[MemoryConnection, MemoryServer] | None:
        wires, name = self._wires, self.life.name
        await asyncio.sleep(wires.delay(name, ""))
        server = self._ports.servers.get(self._port)
        if server is None or not server.is_listening or not server.life.is_alive:
            return None  # refused
        there = server.life.name
        await asyncio.sleep(wires.delay(name, there) + wires.delay(there, name))
        is_blocked = wires.is_blocked(name, there) or wires.is_blocked(there, name)
        if is_blocked or server.life.is_paused:
            await asyncio.sleep(self._backoff)  # nobody shakes hands
            return None
        if not server.is_listening or not server.life.is_alive:
            return None
        connection = MemoryConnection(wires, self.life, server.life)
        server.connected(connection)
        return connection, server

    def _multi(self, kind: str, method: str, serialize: Any, parse: Any) -> Callable[..., Any]:
        streams_up = kind.partition("_")[0]

        def call(
            request: Any = None,
            *,
            metadata: Metadata = (),
            timeout: float | None = None,
            wait_for_ready: bool | None = None,
            **_: Any,
        ) -> DialledCall:
            return DialledCall(
                self,
                method,
                serialize,
                parse,
                request,
                streams_up == "stream",
                (*self.metadata, *metadata),
                timeout,
                bool(wait_for_ready),
            )

        return call

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        """See ``grpc.aio.Channel``."""
        return self._multi("unary_unary", method, request_serializer, response_deserializer)

    def unary_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        """See ``grpc.aio.Channel``."""
        return self._multi("unary_stream", method, request_serializer, response_deserializer)

    def stream_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        """See ``grpc.aio.Channel``."""
        return self._multi("stream_unary", method, request_serializer, response_deserializer)

    def stream_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        """See ``grpc.aio.Channel``."""
        return self._multi("stream_stream", method, request_serializer, response_deserializer)

    @property
    def wires(self) -> MemoryNetwork:
        """The network."""
        return self._wires


class DialledCall:
    """A call as its caller has it, of any of grpc.aio's four kinds."""

    def __init__(
        self,
        channel: MemoryChannel,
        method: str,
        serialize: Callable[[Any], bytes],
        parse: Callable[[bytes], Any],
        request: Any,
        streams: bool,
        metadata: Metadata,
        timeout: float | None,
        waits: bool,
    ) -> None:
        self._channel = channel
        self._method = method
        self._serialize = serialize
        self._parse = parse
        self._metadata = metadata
        self._waits = waits
        self._status: Status | None = None
        self._begun = asyncio.Event()
        self._up: Pipe | None = None
        self._down: Pipe | None = None
        self._connection: MemoryConnection | None = None
        self._has_closed = False
        channel.calls[self] = None
        loop = asyncio.get_running_loop()
        self._timer = None if timeout is None else loop.call_later(timeout, self._expire)
        self._task = loop.create_task(self._begin(request, streams))

    async def _begin(self, request: Any, streams: bool) -> None:
        try:
            await self._open()
        except grpc.aio.AioRpcError as error:
            self._finish(Status(error.code(), error.details() or ""))
            return
        finally:
            self._begun.set()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if not streams:
                await self.write(request)
                await self.done_writing()
            elif request is not None:
                await self._write_all(request)

    async def _open(self) -> None:
        connection, server = await self._channel.connect(waits=self._waits)
        if self._status is not None:
            return
        life, wires = self._channel.life, connection.wires
        takes = wires.takes.get(self._method.rpartition("/")[2], 0.0)
        up, down = connection.pipe(life, server.life, takes), connection.pipe(server.life, life)
        self._up, self._down, self._connection = up, down, connection
        connection.join(self, life)
        method, metadata = self._method, self._metadata
        delay = wires.delay(life.name, server.life.name)

        def arrive() -> None:
            if connection.is_open and server.life.is_alive:
                wires.happened(method)
                wires.hit(f"called: {method.rpartition('/')[2]}")
                ServedCall(server, connection, method, metadata, up, down)

        wires.loop.later(delay, arrive)

    async def _write_all(self, requests: AsyncIterator[Any]) -> None:
        try:
            async for request in requests:
                await self.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except Exception:  # as grpc.aio does where a request iterator fails
            self.cancel()
            return
        await self.done_writing()

    # --- ends -------------------------------------------------------------------------

    def broke(self, reason: str) -> None:
        """Fail; what has arrived may be lost."""
        status = Status(grpc.StatusCode.UNAVAILABLE, reason)
        assert self._connection is not None
        is_cut = self._connection.rng.random() < 0.5
        if self._down is not None:
            self._down.finish(CallEnd(status, is_cut=is_cut))
        if is_cut:
            self._finish(status)

    def _expire(self) -> None:
        self._hang_up(Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def cancel(self) -> bool:
        """See ``grpc.aio.Call``."""
        return self._hang_up(_CANCELLED)

    def _hang_up(self, status: Status) -> bool:
        if self._status is not None:
            return False
        self._finish(status)
        if self._up is not None and self._down is not None:
            self._up.end(_CANCELLED, is_cut=True)
            self._down.finish(CallEnd(status, is_cut=True))
        self._task.cancel()
        self._begun.set()
        return True

    def _finish(self, status: Status) -> None:
        if self._status is not None:
            return
        self._status = status
        self._channel.calls.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.leave(self, self._channel.life)

    def done(self) -> bool:
        """See ``grpc.aio.Call``."""
        return self._status is not None

    def cancelled(self) -> bool:
        """See ``grpc.aio.Call``."""
        return self._status is _CANCELLED

    def _raise(self) -> None:
        assert self._status is not None
        if self._status is _CANCELLED:
            raise asyncio.CancelledError
        if self._status.code is not grpc.StatusCode.OK:
            raise _error(self._status)

    # --- messages ---------------------------------------------------------------------

    async def write(self, request: Any) -> None:
        """See ``grpc.aio.StreamStreamCall``."""
        if self.done() or self._has_closed:
            raise asyncio.InvalidStateError(_FINISHED)
        try:
            await self._begun.wait()
            if self._status is None:
                assert self._up is not None
                await self._up.write(self._serialize(request))
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._status is not None:
            self._raise()

    async def done_writing(self) -> None:
        """See ``grpc.aio.StreamStreamCall``."""
        if self.done() or self._has_closed:
            return
        await self._begun.wait()
        self._has_closed = True
        if self._up is not None:
            self._up.end(_OK)

    async def read(self) -> Any:
        """See ``grpc.aio.StreamStreamCall``."""
        try:
            await self._begun.wait()
            if self._down is None:
                self._raise()
                return grpc.aio.EOF
            data = await self._down.read()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if isinstance(data, CallEnd):
            self._finish(data.value)
            self._raise()
            return grpc.aio.EOF
        return self._parse(data)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def __await__(self) -> Generator[Any, None, Any]:
        return self._whole().__await__()

    async def _whole(self) -> Any:
        answer = await self.read()
        if answer is not grpc.aio.EOF:
            await self.read()  # its status
        return answer


def _error(status: Status) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(*status.trailing)
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), trailing, status.details)
