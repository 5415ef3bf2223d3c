"""KV blocks between workers: the sending calls and the receiving servicer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc

from headway.blocks import blocks_for
from headway.core.worker_events import (
    AcceptKv,
    AcknowledgeKv,
    KvAborted,
    KvArrived,
    KvOffered,
    RefuseKv,
    StartTransfer,
    TransferEnded,
)
from headway.errors import Code, HeadwayError, invalid
from headway.messages import KvHeader
from protos import worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.logs import get_logger
from services.worker.config import WorkerConfig
from services.worker.engine.backend import TorchBackend

NUM_TRIES = 2


class KvSender:
    """Streams requests' KV to other workers beside the running batch."""

    def __init__(
        self, config: WorkerConfig, backend: TorchBackend, post: Callable[[TransferEnded], None]
    ) -> None:
        self._config = config
        self._backend = backend
        self._post = post
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = get_logger()

    def start(self, action: StartTransfer) -> None:
        """Begin a transfer; its end is posted."""
        task = asyncio.create_task(self._transfer(action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _transfer(self, action: StartTransfer) -> None:
        handoff, error = action.handoff, ""
        log = self._log.bind(
            request_id=action.request.request_id, target_worker_id=handoff.target_worker_id
        )
        for _ in range(NUM_TRIES):
            try:
                await self._send(action)
            except grpc.aio.AioRpcError as failed:
                error = f"{failed.code().name}: {failed.details()}"
                log.warning("kv_transfer_failed", error=error)
                if failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    break
            else:
                error = ""
                break
        self._post(
            TransferEnded(
                handoff.key, handoff.target_worker_id, handoff.target_unit, not error, error
            )
        )

    async def _send(self, action: StartTransfer) -> None:
        channel = self._channels.get(action.handoff.target_address)
        if channel is None:
            channel = open_channel(action.handoff.target_address, self._config)
            self._channels[action.handoff.target_address] = channel
        stub = worker_pb2_grpc.WorkerStub(channel)
        await stub.TransferKv(self._chunks(action), timeout=self._config.transfer_timeout)

    async def _chunks(self, action: StartTransfer) -> AsyncIterator[worker_pb2.KvChunk]:
        size = self._config.block_size
        from_host = bool(action.host_blocks)
        held = action.host_blocks or action.blocks
        blocks = held[: blocks_for(action.num_computed_tokens, size)]
        header = KvHeader(
            request=action.request,
            unit=action.handoff.target_unit,
            num_computed_tokens=action.num_computed_tokens,
            num_bytes=self._backend.kv_num_bytes(len(blocks)),
            block_size=size,
            dtype=self._backend.dtype_name,
            shape=self._backend.kv_shape(len(blocks)),
        )
        yield worker_pb2.KvChunk(header=wire.pack_kv_header(header))
        pieces = self._backend.read_kv_chunks(blocks, from_host=from_host)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield worker_pb2.KvChunk(data=bytes(piece))

    async def close(self) -> None:
        """Give up what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))


KvAnswer = AcceptKv | AcknowledgeKv | RefuseKv


class KvReceiver:
    """Takes offered KV into the blocks that the core reserved for it."""

    def __init__(
        self,
        worker_id: str,
        backend: TorchBackend,
        post: Callable[[KvOffered | KvArrived | KvAborted], None],
    ) -> None:
        self._worker_id = worker_id
        self._backend = backend
        self._post = post
        self._answer: KvAnswer | None = None

    def answer(self, action: KvAnswer) -> None:
        """The core's answer to the offer that is being posted."""
        self._answer = action

    async def receive(self, chunks: AsyncIterator[worker_pb2.KvChunk]) -> worker_pb2.KvReceipt:
        """One transfer; raises HeadwayError where it is refused."""
        first = await anext(chunks, None)
        if first is None or first.WhichOneof("body") != "header":
            raise invalid("the first message", first and first.WhichOneof("body"), "a header")
        header = wire.unpack_kv_header(first.header)
        answer = self._offer(header)
        if isinstance(answer, RefuseKv):
            raise answer.error
        if isinstance(answer, AcceptKv):
            await self._fill(answer, header, chunks)
        return worker_pb2.KvReceipt(worker_id=self._worker_id)

    def _offer(self, header: KvHeader) -> KvAnswer:
        self._answer = None
        self._post(KvOffered(header))  # the core answers before post returns
        assert self._answer is not None, "the core answers every offer at once"
        return self._answer

    async def _fill(
        self,
        answer: AcceptKv,
        header: KvHeader,
        chunks: AsyncIterator[worker_pb2.KvChunk],
    ) -> None:
        arrived = False
        try:
            writer = self._backend.kv_writer(
                answer.host_blocks or answer.blocks,
                header.shape,
                header.dtype,
                header.num_computed_tokens,
                to_host=bool(answer.host_blocks),
            )
            async for chunk in chunks:
                await _to_the_end(writer.feed, chunk.data)
            await asyncio.to_thread(writer.finish)
            arrived = True
        except ValueError as error:
            raise HeadwayError(Code.INVALID_ARGUMENT, str(error)) from error
        finally:
            self._post(KvArrived(answer.key) if arrived else KvAborted(answer.key))


async def _to_the_end(write: Callable[[bytes], None], data: bytes) -> None:
    """In a thread; a call that is cancelled waits for it, as its blocks come free next."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise
