"""``TokenSink.Attach``: one stream per worker, tokens in, cancels out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import grpc

from headway.core.gateway.events import WorkerDetached
from headway.errors import HeadwayError, invalid
from headway.messages import TokenBatch
from protos import gateway_pb2, gateway_pb2_grpc
from services.runtime import wire
from services.runtime.logs import get_logger

Context = grpc.aio.ServicerContext[gateway_pb2.TokenBatch, gateway_pb2.TokenControl]
# A worker that does not read its cancels is cut off, not buffered for.
_MOST_CONTROLS = 65_536


class _Attached:
    """One worker's stream; ``controls`` holds stream ids to cancel, None to hang up."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.controls: asyncio.Queue[tuple[int, ...] | None] = asyncio.Queue(_MOST_CONTROLS)

    def hang_up(self) -> None:
        """End the stream, whatever is queued."""
        while not self.controls.empty():
            self.controls.get_nowait()
        self.controls.put_nowait(None)


class TokenSink(gateway_pb2_grpc.TokenSinkServicer):
    """All workers' token streams. A stream that ends, or is replaced, is posted as detached."""

    def __init__(self, post: Callable[[TokenBatch | WorkerDetached], None]) -> None:
        self._post = post
        self._attached: dict[str, _Attached] = {}
        self._log = get_logger()

    @property
    def num_attached(self) -> int:
        """Workers with a token stream."""
        return len(self._attached)

    def cancel(self, worker_id: str, stream_ids: tuple[int, ...]) -> None:
        """Tell a worker to stop; without its stream the scheduler's word must do."""
        attached = self._attached.get(worker_id)
        if attached is None:
            return
        if attached.controls.full():
            self._log.warning("worker_does_not_read", worker_id=worker_id)
            attached.hang_up()
        else:
            attached.controls.put_nowait(stream_ids)

    def close(self) -> None:
        """End every stream."""
        for attached in list(self._attached.values()):
            attached.hang_up()

    async def Attach(  # noqa: N802 (the proto's name)
        self, request_iterator: AsyncIterator[gateway_pb2.TokenBatch], context: Context
    ) -> AsyncIterator[gateway_pb2.TokenControl]:
        """See ``protos/gateway.proto``."""
        try:
            async for control in self._serve(aiter(request_iterator)):
                yield control
        except HeadwayError as error:
            self._log.error("worker_talks_nonsense", error=error.message)
            await wire.abort(context, error)

    async def _serve(
        self, batches: AsyncIterator[gateway_pb2.TokenBatch]
    ) -> AsyncIterator[gateway_pb2.TokenControl]:
        packed = await anext(batches, None)
        if packed is None:
            return
        first = wire.unpack_token_batch(packed)
        if not first.worker_id:
            raise invalid("worker_id", "", "named in the first batch of a stream")
        attached = self._attach(first.worker_id)
        reader = asyncio.create_task(self._read(attached, first, batches))
        try:
            while (stream_ids := await attached.controls.get()) is not None:
                yield gateway_pb2.TokenControl(cancel_stream_ids=stream_ids)
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            self._detach(attached)

    def _attach(self, worker_id: str) -> _Attached:
        older = self._attached.get(worker_id)
        if older is not None:  # what was in flight on the older stream may be lost
            older.hang_up()
            self._detach(older)
        attached = self._attached[worker_id] = _Attached(worker_id)
        self._log.info("worker_attached", worker_id=worker_id)
        return attached

    def _detach(self, attached: _Attached) -> None:
        if self._attached.get(attached.worker_id) is attached:
            del self._attached[attached.worker_id]
            self._log.info("worker_detached", worker_id=attached.worker_id)
            self._post(WorkerDetached(attached.worker_id))

    async def _read(
        self, attached: _Attached, first: TokenBatch, batches: AsyncIterator[gateway_pb2.TokenBatch]
    ) -> None:
        """Post batches until the worker ends the stream; bad bytes end it too."""
        try:
            self._post(first)
            async for packed in batches:
                if self._attached.get(attached.worker_id) is not attached:
                    return
                self._post(self._named(wire.unpack_token_batch(packed), attached.worker_id))
        finally:
            attached.hang_up()

    @staticmethod
    def _named(batch: TokenBatch, worker_id: str) -> TokenBatch:
        return batch if batch.worker_id == worker_id else replace(batch, worker_id=worker_id)
