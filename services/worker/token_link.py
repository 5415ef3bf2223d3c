"""Token streams to gateways: one per gateway, opened at the first token for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from headway.core.worker.events import GatewayGone, SendTokens
from headway.messages import CancelStream, TokenBatch
from headway.request import StreamKey
from services.runtime import wire
from services.runtime.failpoints import failpoint
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.runtime.stream import Dialled, Outbox
from services.worker.config import WorkerConfig

Post = Callable[[CancelStream | GatewayGone], None]
_MOST_QUEUED = 4096  # passes for a gateway that does not read, before it is dropped


class TokenLinks:
    """The streams to all gateways. If one breaks or is not read, its requests are dropped.

    The gateway resubmits the requests of a broken stream, so nothing is sent twice.
    """

    def __init__(
        self,
        config: WorkerConfig,
        nonce: str,
        post: Post,
        now: Callable[[], float],
        broke: Callable[[], None] = lambda: None,
    ) -> None:
        """``broke`` counts a stream that this worker did not close.

        ``nonce`` tells this process from any other that claims its name.
        """
        self._config = config
        self._nonce = nonce
        self._post = post
        self._now = now
        self._broke = broke
        self._links: dict[str, _TokenLink] = {}

    def send(self, action: SendTokens) -> None:
        """Queue one batch; never blocks."""
        link = self._links.get(action.gateway_id)
        if link is None:
            link = _TokenLink(
                action,
                self._config,
                self._nonce,
                self._post,
                self._now,
                self._broke,
                self._forget,
            )
            self._links[action.gateway_id] = link
        for part in wire.split_token_batch(action.batch):
            link.send(part)
        failpoint("worker.tokens.queued")

    def _forget(self, gateway_id: str) -> None:
        self._links.pop(gateway_id, None)

    async def close(self) -> None:
        """Flush the queued batches, then end every stream."""
        await asyncio.gather(*(link.close() for link in list(self._links.values())))


class _TokenLink:
    def __init__(
        self,
        first: SendTokens,
        config: WorkerConfig,
        nonce: str,
        post: Post,
        now: Callable[[], float],
        broke: Callable[[], None],
        forget: Callable[[str], None],
    ) -> None:
        self._gateway_id = first.gateway_id
        self._address = first.gateway_address
        self._post = post
        self._broke = broke
        self._forget = forget
        self._log = get_logger().bind(gateway_id=self._gateway_id)
        self._is_closing = False
        self._outbox = Outbox[TokenBatch](_MOST_QUEUED)
        self._stream = Dialled[TokenBatch](
            config,
            ServiceRole.GATEWAY,
            partial(wire.dial_attach, nonce=nonce),
            lambda batches: wire.pack_token_batch(batches[0], now=now()),
            self._cancel,
            connect_timeout=config.gateway_patience,
        )
        self._task = asyncio.create_task(self._run())

    def send(self, batch: TokenBatch) -> None:
        if not self._outbox.put(batch):
            self._log.warning("gateway_does_not_read")

    async def close(self) -> None:
        self._is_closing = True
        self._outbox.end()
        await asyncio.wait([self._task], timeout=1.0)
        self._task.cancel()

    async def _run(self) -> None:
        reason = ""
        try:
            reason = await self._stream.once(self._address, self._outbox)
            if not self._is_closing:
                self._broke()
        finally:
            self._log.info("token_stream_ended", address=self._address, reason=reason)
            self._forget(self._gateway_id)
            self._post(GatewayGone(self._gateway_id))

    def _cancel(self, packed: Any) -> None:
        for stream_id in wire.unpack_cancels(packed):
            self._post(CancelStream(StreamKey(self._gateway_id, stream_id)))
