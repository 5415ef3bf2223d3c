"""Token streams to gateways: one per gateway, opened at the first token for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from headway.core.worker.events import GatewayGone, SendTokens
from headway.messages import CancelStream, TokenBatch
from headway.request import StreamKey
from protos import gateway_pb2, gateway_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.logs import get_logger
from services.worker.config import WorkerConfig

_AttachCall = grpc.aio.StreamStreamCall[gateway_pb2.TokenBatch, gateway_pb2.TokenControl]
_LAST_WORDS = 0.5  # seconds
Post = Callable[[CancelStream | GatewayGone], None]


class TokenLinks:
    """All gateways' streams. A stream that breaks, or is not read, drops the gateway's requests.

    The gateway submits again what a broken stream carried, so nothing is sent twice.
    """

    def __init__(self, config: WorkerConfig, post: Post) -> None:
        self._config = config
        self._post = post
        self._links: dict[str, _TokenLink] = {}

    def send(self, action: SendTokens) -> None:
        """Queue one batch; never blocks."""
        link = self._links.get(action.gateway_id)
        if link is None:
            link = _TokenLink(action, self._config, self._post, self._forget)
            self._links[action.gateway_id] = link
        link.send(action.batch)

    def _forget(self, gateway_id: str) -> None:
        self._links.pop(gateway_id, None)

    async def close(self) -> None:
        """Flush what is queued, then end every stream."""
        await asyncio.gather(*(link.close() for link in list(self._links.values())))


class _TokenLink:
    def __init__(
        self, first: SendTokens, config: WorkerConfig, post: Post, forget: Callable[[str], None]
    ) -> None:
        self._gateway_id = first.gateway_id
        self._address = first.gateway_address
        self._config = config
        self._post = post
        self._forget = forget
        self._log = get_logger().bind(gateway_id=self._gateway_id)
        self._queue: asyncio.Queue[TokenBatch | None] = asyncio.Queue(config.token_queue_batches)
        self._task = asyncio.create_task(self._run())

    def send(self, batch: TokenBatch) -> None:
        try:
            self._queue.put_nowait(batch)
        except asyncio.QueueFull:
            self._log.warning("gateway_does_not_read", num_batches=self._queue.qsize())
            self._task.cancel()

    async def close(self) -> None:
        if not self._queue.full():
            self._queue.put_nowait(None)
        await asyncio.wait([self._task], timeout=1.0)
        self._task.cancel()

    async def _run(self) -> None:
        try:
            async with open_channel(self._address, self._config) as channel:
                async with asyncio.timeout(self._config.gateway_patience):
                    await channel.channel_ready()
                await self._pump(gateway_pb2_grpc.TokenSinkStub(channel).Attach())
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._log.warning("token_stream_broken", address=self._address, error=repr(error))
        finally:
            self._forget(self._gateway_id)
            self._post(GatewayGone(self._gateway_id))

    async def _pump(self, call: _AttachCall) -> None:
        reader = asyncio.create_task(self._read(call))
        try:
            while (batch := await self._next(reader)) is not None:
                await call.write(wire.pack_token_batch(batch))
            await call.done_writing()
            await asyncio.wait(
                [reader], timeout=_LAST_WORDS
            )  # the gateway hangs up once it has all
        finally:
            reader.cancel()
            call.cancel()

    async def _next(self, reader: asyncio.Task[None]) -> TokenBatch | None:
        """The next batch; None once the link is closing or the gateway has hung up."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        getter = asyncio.ensure_future(self._queue.get())
        done, _ = await asyncio.wait([getter, reader], return_when=asyncio.FIRST_COMPLETED)
        if getter in done:
            return getter.result()
        getter.cancel()
        return None

    async def _read(self, call: _AttachCall) -> None:
        async for control in call:
            for stream_id in control.cancel_stream_ids:
                self._post(CancelStream(StreamKey(self._gateway_id, stream_id)))
