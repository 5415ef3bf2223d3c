"""Sending of KV blocks to other workers, in parallel with the running batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headway.blocks import blocks_for
from headway.core.worker.events import KvSent, StartTransfer, TransferEnded
from headway.engine import KvAccess
from headway.errors import Code, HeadwayError
from headway.messages import KvHeader, KvPart
from headway.request import StreamKey
from services.runtime import wire
from services.runtime.channel import Channels
from services.runtime.failpoints import failpoint
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.worker.config import WorkerConfig
from services.worker.metrics import BROKEN, CALLED_OFF, REFUSED, SENT, WorkerMetrics

_LINK_FAULTS = frozenset({Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED})


class KvSender:
    """A sender of requests' KV; the end of each transfer is posted."""

    def __init__(
        self,
        config: WorkerConfig,
        backend: KvAccess,
        post: Callable[[KvSent | TransferEnded], None],
        metrics: WorkerMetrics,
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self._config = config
        self._backend = backend
        self._post = post
        self._metrics = metrics
        self._channels = Channels(config, ServiceRole.WORKER)
        self._transfers: dict[StreamKey, _Transfer] = {}
        self._log = get_logger()

    def start(self, action: StartTransfer) -> None:
        """Start a transfer, or continue one that waits for more."""
        transfer = self._transfers.get(action.request.key)
        if transfer is None:
            transfer = self._transfers[action.request.key] = _Transfer(action, self._metrics)
            transfer.task = asyncio.create_task(self._try(transfer))
            transfer.task.add_done_callback(partial(self._ended, transfer))
        transfer.add(action)

    def stop(self, key: StreamKey) -> None:
        """End a transfer at once, also one whose target hangs; a target drops what it has."""
        transfer = self._transfers.get(key)
        if transfer is not None and transfer.task is not None:
            transfer.task.cancel()

    def _ended(self, transfer: _Transfer, task: asyncio.Task[str]) -> None:
        """Post the end of a transfer, whatever it was."""
        handoff = transfer.last.handoff
        del self._transfers[handoff.key]
        if task.cancelled():
            transfer.end, error = CALLED_OFF, "the transfer was called off"
        elif (failed := task.exception()) is not None:
            self._log.error("kv_transfer_failed", exc_info=failed)
            error = f"the transfer failed: {failed!r}"
        else:
            error = task.result()
        if not error:
            failpoint("worker.kv.acked")
            transfer.measure()
        self._metrics.transferred(transfer.end if error else SENT)
        self._post(
            TransferEnded(
                handoff.key,
                handoff.target_worker_id,
                handoff.target_unit,
                not error,
                error,
                transfer.num_bytes,
                transfer.seconds,
            )
        )

    async def _try(self, transfer: _Transfer) -> str:
        """Return why it failed, or "". Try twice to send the whole KV of a stopped request."""
        if not self._backend.info.kv_layout:
            return "this worker's engine sends no KV"
        handoff = transfer.last.handoff
        log = self._log.bind(
            request_id=transfer.last.request.request_id, target_worker_id=handoff.target_worker_id
        )
        for is_last_try in (False, True):
            try:
                await self._send(transfer)
            except HeadwayError as failed:
                error = f"{failed.code.name}: {failed.message}"
                log.warning("kv_transfer_failed", error=error)
                transfer.end = BROKEN if failed.code in _LINK_FAULTS else REFUSED
                is_full = failed.code is Code.RESOURCE_EXHAUSTED
                if is_last_try or is_full or transfer.last.more:
                    return error
                transfer.begin_again()
            else:
                return ""
        raise AssertionError("the last try returns")

    async def _send(self, transfer: _Transfer) -> None:
        address = transfer.last.handoff.target_address
        channel = self._channels.to(address)
        chunks = self._chunks(transfer)
        await wire.transfer_kv(channel, chunks, within=self._config.transfer_timeout)
        transfer.rests()

    async def _chunks(self, transfer: _Transfer) -> AsyncIterator[Any]:
        num_known: int | None = None  # output tokens
        while True:
            part = await transfer.parts.get()
            transfer.works()
            blocks = self._blocks(part)
            yield wire.KV.pack(self._opening(part, blocks, num_known), now=self._now())
            num_known = len(part.request.output_token_ids)
            pieces = self._backend.read_kv(blocks, from_host=bool(part.host_blocks))
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                transfer.num_bytes += piece.nbytes
                yield wire.KV.pack(bytes(piece), now=self._now())
            if not part.more:
                return  # the target's answer ends it
            transfer.rests()
            self._post(KvSent(part.request.key))

    def _blocks(self, part: StartTransfer) -> Sequence[int]:
        size = self._backend.info.block_size
        held = part.host_blocks or part.blocks
        return held[part.first_token // size : blocks_for(part.num_computed_tokens, size)]

    def _opening(
        self, part: StartTransfer, blocks: Sequence[int], num_known: int | None
    ) -> KvHeader | KvPart:
        """Return a header, or for a later part the changes since the part before."""
        shape = self._backend.kv_shape(len(blocks))
        if num_known is not None:
            output = part.request.output_token_ids[num_known:]
            return KvPart(part.first_token, part.num_computed_tokens, output, shape, part.more)
        return KvHeader(
            request=part.request,
            unit=part.handoff.target_unit,
            num_computed_tokens=part.num_computed_tokens,
            num_bytes=self._backend.info.kv_num_bytes(len(blocks)),
            block_size=self._backend.info.block_size,
            dtype=self._backend.info.dtype,
            shape=shape,
            more=part.more,
            fencing_token=part.handoff.fencing_token,
            layout=self._backend.info.kv_layout,
        )

    async def close(self) -> None:
        """Abort the transfers in progress."""
        for key in list(self._transfers):
            self.stop(key)
        await self._channels.close()


class _Transfer:
    """One transfer: ``parts`` to send, ``last`` is the newest."""

    def __init__(self, first: StartTransfer, metrics: WorkerMetrics) -> None:
        self.last = first
        self.task: asyncio.Task[str] | None = None
        self.end = REFUSED
        """How it ended, unless all was sent."""
        self.parts: asyncio.Queue[StartTransfer] = asyncio.Queue()
        self._metrics = metrics
        self._stopped_at = 0.0
        self._num_passes = 0
        self.num_bytes = 0
        """Bytes of KV that went out."""
        self.seconds = 0.0
        """Seconds that they took, without the waits between the parts."""
        self._works_since = 0.0

    def add(self, part: StartTransfer) -> None:
        """Queue the next part."""
        self.last = part
        self.parts.put_nowait(part)
        if not part.more:
            self._stopped_at = asyncio.get_running_loop().time()
            self._num_passes = self._metrics.num_passes

    def begin_again(self) -> None:
        """Restart with all of the KV in one part."""
        self.num_bytes, self.seconds = 0, 0.0
        self.parts = asyncio.Queue()
        self.parts.put_nowait(replace(self.last, first_token=0))

    def works(self) -> None:
        """Note that a part begins to go out."""
        self._works_since = asyncio.get_running_loop().time()

    def rests(self) -> None:
        """Note that it has gone out."""
        self.seconds += asyncio.get_running_loop().time() - self._works_since

    def measure(self) -> None:
        """Report the pause: the time since it stopped, and the passes that began since."""
        pause = asyncio.get_running_loop().time() - self._stopped_at
        self._metrics.moved(pause, self._metrics.num_passes - self._num_passes)
