"""Receiving of KV blocks from other workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    KvAborted,
    KvArrived,
    KvContinued,
    KvOffered,
    RefuseKv,
)
from headway.engine import IncomingKv, KvAccess, KvSink
from headway.errors import Code, HeadwayError, invalid
from headway.messages import KvHeader, KvPart, KvSource
from headway.request import StreamKey
from services.runtime import wire
from services.runtime.failpoints import failpoint
from services.worker.kv_nixl import HeldSink, NixlKv, by_grpc

KvAnswer = AcceptKv | AcknowledgeKv | RefuseKv
KvQuestion = KvOffered | KvContinued


class KvReceiver:
    """A receiver that takes offered KV into the blocks that the core reserved for it."""

    def __init__(
        self,
        backend: KvAccess,
        post: Callable[[KvQuestion | KvArrived | KvAborted], None],
        now: Callable[[], float],
        nixl: NixlKv | None = None,
        *,
        patience: float,
    ) -> None:
        """Make a receiver.

        ``nixl``: None refuses what is to be read by it, and senders take gRPC. ``patience``: the
        seconds that one transfer may take, so that no sender holds blocks here for ever.
        """
        self._patience = patience
        self._nixl = nixl
        self._backend = backend
        self._post = post
        self._now = now
        self._answer: KvAnswer | None = None

    def answer(self, action: KvAnswer) -> None:
        """Take the core's answer to the offer that is being posted."""
        self._answer = action

    async def receive(self, chunks: AsyncIterator[Any]) -> None:
        """Take one transfer; raise HeadwayError if it is refused, or takes too long."""
        try:
            async with asyncio.timeout(self._patience):
                await self._receive(chunks)
        except TimeoutError:
            message = f"the transfer took over {self._patience:g} s: its blocks here are free again"
            raise HeadwayError(Code.DEADLINE_EXCEEDED, message) from None

    async def _receive(self, chunks: AsyncIterator[Any]) -> None:
        first = await anext(chunks, None)
        header = wire.KV.unpack(first, now=self._now()) if first is not None else None
        if not isinstance(header, KvHeader):
            raise invalid("the first message", type(header).__name__, "a header")
        answer = self._ask(KvOffered(header))
        if isinstance(answer, AcceptKv):
            await self._take(answer, header, chunks)

    def _ask(self, question: KvQuestion) -> AcceptKv | AcknowledgeKv:
        self._answer = None
        self._post(question)  # the core answers before post returns
        if self._answer is None:  # the driver is closed
            raise HeadwayError(Code.UNAVAILABLE, "this worker is stopping: try another one")
        if isinstance(self._answer, RefuseKv):
            raise self._answer.error
        return self._answer

    async def _take(self, answer: AcceptKv, header: KvHeader, chunks: AsyncIterator[Any]) -> None:
        arrived = False
        try:
            await self._fill(answer, header, chunks)
            arrived = True
            failpoint("worker.kv.arrived")
        except ValueError as error:
            raise HeadwayError(Code.INVALID_ARGUMENT, str(error)) from error
        finally:
            self._post(KvArrived(answer.key) if arrived else KvAborted(answer.key))

    async def _fill(self, answer: AcceptKv, header: KvHeader, chunks: AsyncIterator[Any]) -> None:
        """Write the header's bytes, then those of every part, up to the last."""
        num_tokens, more = header.num_computed_tokens, header.more
        writer: KvSink = self._writer(answer, header.shape, header.dtype, 0, num_tokens)
        first_token = 0
        async for chunk in chunks:
            part = wire.KV.unpack(chunk, now=self._now())
            if isinstance(part, bytes):
                await _to_the_end(asyncio.to_thread(writer.feed, part))
                continue
            if isinstance(part, KvSource):
                await _to_the_end(self._read(part, answer, header.block_size, first_token))
                writer = HeldSink()
                continue
            if isinstance(part, KvHeader):
                raise invalid("a later message", "KvHeader", "data or a part")
            await asyncio.to_thread(writer.finish)
            if not more or part.first_token != num_tokens:
                limit = f"{num_tokens}, as many as have been sent" if more else "in no part"
                raise invalid("first_token", part.first_token, limit)
            answer = self._continue(answer.key, part)
            writer = self._writer(
                answer, part.shape, header.dtype, num_tokens, part.num_computed_tokens
            )
            first_token, num_tokens, more = num_tokens, part.num_computed_tokens, part.more
        await asyncio.to_thread(writer.finish)
        if more:
            raise invalid("the last message", "a part with more", "followed by the rest")

    async def _read(
        self, source: KvSource, answer: AcceptKv, block_size: int, first_token: int
    ) -> None:
        """Read blocks from the sender's memory; HeadwayError where it has to send them."""
        own = self._backend.info.block_size
        if self._nixl is None:
            raise by_grpc("this worker takes KV by gRPC alone")
        if block_size != own or first_token % own:
            raise by_grpc(f"layouts differ: {block_size} tokens a block there, {own} here")
        blocks = (answer.host_blocks or answer.blocks)[first_token // own :]
        await self._nixl.read(source, blocks, to_host=bool(answer.host_blocks))

    def _continue(self, key: StreamKey, part: KvPart) -> AcceptKv:
        answer = self._ask(KvContinued(key, part.num_computed_tokens, part.output_token_ids))
        assert isinstance(answer, AcceptKv), "what arrives does not run here"
        return answer

    def _writer(
        self, answer: AcceptKv, shape: Sequence[int], dtype: str, first_token: int, num_tokens: int
    ) -> KvSink:
        blocks, to_host = answer.host_blocks or answer.blocks, bool(answer.host_blocks)
        kv = IncomingKv(blocks, shape, dtype, num_tokens, first_token, to_host)
        return self._backend.kv_writer(kv)


async def _to_the_end(write: Awaitable[None]) -> None:
    """Wait for it; when cancelled, too, because its blocks come free next."""
    writing = asyncio.ensure_future(write)
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise
