"""The watch over one endpoint: its metrics, its KV events, and the ends of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from headway.core.picker.events import (
    EndpointMetrics,
    KvChanged,
    Scraped,
    Silence,
    Stepped,
)
from services.endpoints.endpoints_file import Listed
from services.endpoints.vllm_metrics import read_metrics
from services.runtime.essential import end_tasks, essential

_MOST_BYTES = 8 << 20


class Watcher:
    """Scrapes an endpoint once an interval, and reads what it publishes, until it is closed."""

    def __init__(
        self,
        listed: Listed,
        client: aiohttp.ClientSession,
        interval: float,
        timeout: float,
        now: Callable[[], float],
        post: Callable[[Scraped | KvChanged | Stepped], None],
    ) -> None:
        self.listed = listed
        self._client = client
        self._interval = interval
        self._timeout = timeout
        self._now = now
        self._post = post
        address = listed.info.address
        self._tasks: list[asyncio.Task[object]] = []
        if listed.info.has_metrics:
            self._tasks.append(essential(self._scrape_all(), f"scrapes of {address}"))
        if listed.kv_events:
            from services.endpoints.kv_events import KvEventReader

            reader = KvEventReader(address, listed.kv_events, listed.kv_replay, post)
            self._tasks.append(essential(reader.run(), f"KV events of {address}"))
        if listed.steps:
            from services.endpoints.steps import read_steps

            reading = read_steps(address, listed.steps, post)
            self._tasks.append(essential(reading, f"steps of {address}"))

    async def close(self) -> None:
        """Stop watching."""
        await end_tasks(*self._tasks)

    async def _scrape_all(self) -> None:
        while True:
            begun_at = self._now()
            result = await self._scrape()
            self._post(Scraped(self.listed.info.address, result, begun_at))
            await asyncio.sleep(max(0.0, begun_at + self._interval - self._now()))

    async def _scrape(self) -> EndpointMetrics | Silence:
        url = f"{self.listed.metrics}/metrics"
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._client.get(url, allow_redirects=False) as reply,
            ):
                if reply.status >= 500:
                    return Silence.REFUSED
                text = await reply.content.read(_MOST_BYTES)
                while (more := await reply.content.read(_MOST_BYTES)) and len(text) < _MOST_BYTES:
                    text += more
        except TimeoutError:
            return Silence.TIMEOUT
        except (aiohttp.ClientError, OSError):
            return Silence.REFUSED
        return read_metrics(text.decode("utf-8", "replace")) or Silence.NO_METRICS
