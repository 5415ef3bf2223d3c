"""``TokenSink.Attach``: one stream per worker, tokens in, cancels out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial

import grpc

from headway.core.gateway.events import WorkerBack, WorkerDetached
from headway.errors import Code, HeadwayError, invalid
from headway.messages import TokenBatch
from protos import gateway_pb2, gateway_pb2_grpc
from services.runtime import wire
from services.runtime.identity.guard import require_id
from services.runtime.logs import get_logger
from services.runtime.membership import digest_of
from services.runtime.stream import Served

Context = grpc.aio.ServicerContext[gateway_pb2.TokenBatch, gateway_pb2.TokenControl]
_MOST_CONTROLS = 65_536
_MOST_FORMER = 4096


class TokenSink(gateway_pb2_grpc.TokenSinkServicer):
    """The token streams of all workers. One that ends or is replaced is reported as detached."""

    def __init__(
        self,
        post: Callable[[TokenBatch | WorkerBack | WorkerDetached], None],
        find_digest: Callable[[str], Awaitable[str]],
        now: Callable[[], float],
    ) -> None:
        """``find_digest`` looks a worker's nonce up in the membership: its digest, or ""."""
        self._post = post
        self._find_digest = find_digest
        self._now = now
        self._attached: dict[str, Served[tuple[int, ...]]] = {}
        self._nonces: dict[str, str] = {}
        self._former: dict[str, str] = {}  # nonces of streams that have ended, newest last
        self._log = get_logger()

    @property
    def num_attached(self) -> int:
        """Workers with a token stream."""
        return len(self._attached)

    def cancel(self, worker_id: str, stream_ids: tuple[int, ...]) -> None:
        """Send cancels to a worker; without its stream only the scheduler's cancels reach it."""
        stream = self._attached.get(worker_id)
        if stream is not None and not stream.send(stream_ids):
            self._log.warning("worker_does_not_read", worker_id=worker_id)

    def close(self) -> None:
        """End every stream."""
        for stream in list(self._attached.values()):
            stream.end()

    async def Attach(  # noqa: N802 (the proto's name)
        self, request_iterator: AsyncIterator[gateway_pb2.TokenBatch], context: Context
    ) -> AsyncIterator[gateway_pb2.TokenControl]:
        """See ``protos/gateway.proto``."""
        try:
            async for stream_ids in self._serve(aiter(request_iterator), context):
                yield gateway_pb2.TokenControl(cancel_stream_ids=stream_ids)
        except HeadwayError as error:
            self._log.error("worker_talks_nonsense", error=error.message)
            raise

    async def _serve(
        self, batches: AsyncIterator[gateway_pb2.TokenBatch], context: Context
    ) -> AsyncIterator[tuple[int, ...]]:
        packed = await anext(batches, None)
        if packed is None:
            return
        first = wire.unpack_token_batch(packed, now=self._now())
        if not first.worker_id:
            raise invalid("worker_id", "", "named in the first batch of a stream")
        require_id(context, first.worker_id)
        nonce = wire.nonce_of(context)
        await self._require_own(first.worker_id, nonce)
        stream = self._attach(first.worker_id, nonce)
        self._post(first)
        async for cancels in stream.serve(batches, partial(self._take, first.worker_id)):
            for stream_ids in cancels:
                yield stream_ids

    async def _require_own(self, worker_id: str, nonce: str) -> None:
        """Raise PERMISSION_DENIED if another process holds this worker's stream.

        A worker that has been started again shows the nonce that the membership now has.
        """
        if self._nonces.get(worker_id, nonce) == nonce:
            return
        digest = await self._find_digest(worker_id)
        if self._nonces.get(worker_id, nonce) != nonce and digest != digest_of(nonce):
            message = f"worker {worker_id} has a stream here already, and this is not its process"
            raise HeadwayError(Code.PERMISSION_DENIED, message)

    def _attach(self, worker_id: str, nonce: str) -> Served[tuple[int, ...]]:
        older = self._attached.get(worker_id)
        if older is not None:  # tokens in flight on the older stream may be lost
            older.end()
        stream: Served[tuple[int, ...]]
        stream = Served(_MOST_CONTROLS, on_end=partial(self._detach, worker_id))
        self._attached[worker_id], self._nonces[worker_id] = stream, nonce
        self._log.info("worker_attached", worker_id=worker_id)
        if self._former.pop(worker_id, "") == nonce != "":
            self._post(WorkerBack(worker_id, _process_of(nonce)))
        return stream

    def _detach(self, worker_id: str) -> None:
        del self._attached[worker_id]
        nonce = self._former[worker_id] = self._nonces.pop(worker_id)
        if len(self._former) > _MOST_FORMER:
            del self._former[next(iter(self._former))]
        self._log.info("worker_detached", worker_id=worker_id)
        self._post(WorkerDetached(worker_id, _process_of(nonce)))

    def _take(self, worker_id: str, packed: gateway_pb2.TokenBatch) -> None:
        batch = wire.unpack_token_batch(packed, now=self._now())
        self._post(batch if batch.worker_id == worker_id else replace(batch, worker_id=worker_id))


def _process_of(nonce: str) -> str:
    """Return the name of a worker's process, as the worker describes itself to the scheduler."""
    return digest_of(nonce) if nonce else ""
