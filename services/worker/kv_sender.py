"""Sending of KV blocks to other workers, in parallel with the running batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from headway.blocks import blocks_for
from headway.core.worker.events import KvSent, StartTransfer, TransferEnded
from headway.engine import KvAccess
from headway.errors import Code, HeadwayError
from headway.messages import KvHeader, KvPart, KvSource
from headway.request import StreamKey
from services.runtime import wire
from services.runtime.channel import Channels
from services.runtime.failpoints import failpoint
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.worker.config import WorkerConfig
from services.worker.kv_nixl import NixlKv, NixlOutlet
from services.worker.metrics import BROKEN, CALLED_OFF, REFUSED, SENT, WorkerMetrics

_LINK_FAULTS = frozenset({Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED})
_BY_GRPC = 60.0
"""Seconds in which a worker that has refused NIXL is sent its KV by gRPC."""


class KvOutlet(Protocol):
    """A way for one transfer's KV to its target."""

    @property
    def name(self) -> str:
        """Return "grpc" or "nixl"."""

    def send(self, blocks: Sequence[int], *, from_host: bool) -> AsyncIterator[bytes | KvSource]:
        """Yield what goes to the target; at the end the blocks may change."""

    def close(self) -> None:
        """Give up what is not at its end."""


class GrpcOutlet:
    """A ``KvOutlet`` of the bytes themselves."""

    name = "grpc"

    def __init__(self, kv: KvAccess) -> None:
        self._kv = kv

    async def send(
        self, blocks: Sequence[int], *, from_host: bool
    ) -> AsyncIterator[bytes | KvSource]:
        """See ``KvOutlet``."""
        pieces = self._kv.read_kv(blocks, from_host=from_host)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield bytes(piece)

    def close(self) -> None:
        """Do nothing: who asks for the next piece has gone."""


class KvSender:
    """A sender of requests' KV; the end of each transfer is posted."""

    def __init__(
        self,
        config: WorkerConfig,
        backend: KvAccess,
        post: Callable[[KvSent | TransferEnded], None],
        metrics: WorkerMetrics,
        now: Callable[[], float],
        nixl: NixlKv | None = None,
    ) -> None:
        """``nixl``: the way that is taken where the target has it, too."""
        self._nixl = nixl
        self._by_grpc: dict[str, float] = {}
        """Until when, by the address of a target."""
        self._now = now
        self._config = config
        self._backend = backend
        self._post = post
        self._metrics = metrics
        self._channels = Channels(config, ServiceRole.WORKER)
        self._transfers: dict[StreamKey, _Transfer] = {}
        self._link = SharedLink()
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
        self._metrics.transferred(transfer.end if error else SENT, transfer.by, transfer.num_bytes)
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
        num_tries = 2
        while True:
            try:
                await self._send(transfer)
            except HeadwayError as failed:
                error = f"{failed.code.name}: {failed.message}"
                if self._refuses_nixl(transfer, failed):
                    log.info("kv_by_grpc", reason=error)
                    transfer.begin_again()
                    continue
                log.warning("kv_transfer_failed", error=error)
                transfer.end = BROKEN if failed.code in _LINK_FAULTS else REFUSED
                num_tries -= 1
                is_full = failed.code is Code.RESOURCE_EXHAUSTED
                if not num_tries or is_full or transfer.last.more:
                    return error
                transfer.begin_again()
            else:
                return ""

    def _refuses_nixl(self, transfer: _Transfer, failed: HeadwayError) -> bool:
        """Return whether to begin again by gRPC; that is the way to this target for a while."""
        if transfer.by != NixlOutlet.name or failed.code is not Code.FAILED_PRECONDITION:
            return False
        self._by_grpc[transfer.last.handoff.target_address] = self._now() + _BY_GRPC
        return not (transfer.last.more and transfer.num_rounds)

    async def _send(self, transfer: _Transfer) -> None:
        address = transfer.last.handoff.target_address
        outlet: KvOutlet = GrpcOutlet(self._backend)
        if self._nixl is not None and self._by_grpc.get(address, 0.0) <= self._now():
            self._by_grpc.pop(address, None)
            outlet = NixlOutlet(self._nixl)
        transfer.by = outlet.name
        if isinstance(outlet, NixlOutlet):
            await outlet.ready()
        channel = self._channels.to(address)
        chunks = self._chunks(transfer, outlet)
        try:
            await wire.transfer_kv(channel, chunks, within=self._config.transfer_timeout)
        finally:
            outlet.close()
            self._link.left_by(transfer, _loop_time())

    async def _chunks(self, transfer: _Transfer, outlet: KvOutlet) -> AsyncIterator[Any]:
        num_known: int | None = None  # output tokens
        while True:
            part = await transfer.parts.get()
            blocks = self._blocks(part)
            yield wire.KV.pack(self._opening(part, blocks, num_known), now=self._now())
            self._link.used_by(transfer, _loop_time())  # it is connected by now
            num_known = len(part.request.output_token_ids)
            async for piece in outlet.send(blocks, from_host=bool(part.host_blocks)):
                yield wire.KV.pack(piece, now=self._now())
            transfer.num_bytes += self._backend.info.kv_num_bytes(len(blocks))
            if not part.more:
                return  # the target's answer ends it
            self._link.left_by(transfer, _loop_time())
            transfer.num_rounds += 1
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


class LinkUse(Protocol):
    """Use of a link by one transfer: ``seconds`` are its part of the link's time."""

    seconds: float


class SharedLink:
    """The link that transfers share: each is counted its part of the time that it is in use.

    So their bytes over their seconds are what the link carries, however many go out at a time. Two
    that each waited for the other would make it look half as fast.
    """

    def __init__(self) -> None:
        self._users: list[LinkUse] = []
        self._counted_at = 0.0

    def used_by(self, transfer: LinkUse, now: float) -> None:
        """Note that a part of a transfer begins to go out; ``now`` in seconds."""
        self._count(now)
        self._users.append(transfer)

    def left_by(self, transfer: LinkUse, now: float) -> None:
        """Note that it has gone out, or never will; nothing for one that rests."""
        self._count(now)
        self._users = [each for each in self._users if each is not transfer]

    def _count(self, now: float) -> None:
        for each in self._users:
            each.seconds += (now - self._counted_at) / len(self._users)
        self._counted_at = now


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class _Transfer:
    """One transfer: ``parts`` to send, ``last`` is the newest."""

    def __init__(self, first: StartTransfer, metrics: WorkerMetrics) -> None:
        self.last = first
        self.task: asyncio.Task[str] | None = None
        self.by = GrpcOutlet.name
        self.num_rounds = 0
        """Parts that the target has, while the request still runs."""
        self.end = REFUSED
        """How it ended, unless all was sent."""
        self.parts: asyncio.Queue[StartTransfer] = asyncio.Queue()
        self._metrics = metrics
        self._stopped_at = 0.0
        self._num_passes = 0
        self.num_bytes = 0
        """Bytes of KV that went out."""
        self.seconds = 0.0
        """Its part of the seconds in which the link was in use (``SharedLink``)."""

    def add(self, part: StartTransfer) -> None:
        """Queue the next part."""
        self.last = part
        self.parts.put_nowait(part)
        if not part.more:
            self._stopped_at = _loop_time()
            self._num_passes = self._metrics.num_passes

    def begin_again(self) -> None:
        """Restart with all of the KV in one part."""
        self.num_bytes, self.num_rounds, self.seconds = 0, 0, 0.0
        self.parts = asyncio.Queue()
        self.parts.put_nowait(replace(self.last, first_token=0))

    def measure(self) -> None:
        """Report the pause: the time since it stopped, and the passes that began since."""
        pause = _loop_time() - self._stopped_at
        self._metrics.moved(pause, self._metrics.num_passes - self._num_passes)
