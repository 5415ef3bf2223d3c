"""The console's stream: one frame, then its changes, twice a second.

A change is computed and encoded once for all who watch the same requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from headway.console.conversations import sessions_of
from headway.console.frame import promises_of, rows_of
from headway.console.patch import merge_patch
from headway.console.recent import COLUMNS, EndedRequest, RecentRequests
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.rows import RowQuery, RowSearch
from headway.errors import Code, HeadwayError
from headway.request import FinishReason
from headway.service_class import ServiceClasses
from services.gateway.console.observer import ClusterObserver
from services.gateway.http.exchange import Exchange
from services.gateway.outputs import OWN_FAULT, Output

_INTERVAL = 0.5
_FIRST = 0.02
"""Seconds between looks for the first answer of the cluster: nobody is shown what was before."""
_MOST_IN_FULL = 2
"""Different views that are told every interval; more of them are told less often."""
MOST_WATCHERS = 8
STREAM = "text/event-stream; charset=utf-8"
Json = dict[str, Any]


class _View:
    """One choice of requests, everybody who watches it, and the rows that were sent last."""

    def __init__(self, query: RowQuery) -> None:
        self.search = RowSearch(query)
        self.rows: Json = {}
        self.has_all: list[Exchange] = []
        """Watchers that have a whole frame, and take changes."""
        self.new: list[Exchange] = []

    def tell(self, shared: Json, changed: Json, rows: Json) -> None:
        """Send everybody the same change, and a whole frame to who has none."""
        patch = merge_patch({"requests": self.rows}, {"requests": rows})
        self.rows = rows
        if self.has_all:
            data = _event("patch", {**changed, **patch})
            for exchange in list(self.has_all):  # who does not read leaves meanwhile
                exchange.write(data)
        if self.new:
            data = _event("state", {**shared, "requests": rows})
            for exchange in list(self.new):
                exchange.write(data)
            self.has_all, self.new = self.has_all + self.new, []


class ConsoleFeed:
    """The gateway's figures and their streams; without a watcher it only counts.

    ``describe`` gives what the gateway says of itself.
    """

    def __init__(
        self,
        core: GatewayCore,
        recent: RecentRequests,
        classes: ServiceClasses,
        observer: ClusterObserver,
        describe: Callable[[], Mapping[str, Any]],
        now: Callable[[], float],
    ) -> None:
        self._core = core
        self._observer = observer
        self._describe = describe
        self._now = now
        self.promises = promises_of(classes.by_name.values())
        self.recent = recent
        self._classes: tuple[int, Json] = (0, {})  # with the second of their figures
        self._watchers: dict[Exchange, RowQuery] = {}
        self._views: dict[RowQuery, _View] = {}
        self._shared: Json = {}  # what everybody was shown last
        self._timer: asyncio.TimerHandle | None = None
        self._counting: asyncio.TimerHandle | None = None

    # --- figures ----------------------------------------------------------------------

    def start(self) -> None:
        """Keep a history from now on."""
        self._count()

    def _count(self) -> None:
        core = self._core
        self.recent.tick(core.num_open, core.num_waiting, now=self._now())
        self._counting = asyncio.get_running_loop().call_later(1.0, self._count)

    def ended(self, output: Output, end: str) -> EndedRequest:
        """Take an output that is over, and return what the figures need of it."""
        ended = _ended(output, end, self._now())
        self.recent.note(ended)
        return ended

    @property
    def is_watched(self) -> bool:
        """True while a stream is open."""
        return bool(self._watchers)

    # --- who watches ------------------------------------------------------------------

    def watch(self, exchange: Exchange, query: RowQuery) -> None:
        """Stream to this client until it leaves; RESOURCE_EXHAUSTED where too many watch."""
        if len(self._watchers) >= MOST_WATCHERS:
            message = f"{MOST_WATCHERS} streams of the console are open, the most: close one"
            raise HeadwayError(Code.RESOURCE_EXHAUSTED, message, retry_after=5.0)
        exchange.add_header("cache-control", "no-store")
        exchange.start(200, STREAM)
        self._watchers[exchange] = query
        self._views.setdefault(query, _View(query)).new.append(exchange)
        exchange.on_gone = lambda: self._leave(exchange)
        self._observer.start()
        history = {"columns": COLUMNS, "rows": list(self.recent.history)}
        exchange.write(_event("history", history))
        if self._timer is None:
            self._tell()

    def _leave(self, exchange: Exchange) -> None:
        query = self._watchers.pop(exchange, None)
        if query is not None:
            view = self._views[query]
            for listed in (view.has_all, view.new):
                if exchange in listed:
                    listed.remove(exchange)
            if not view.has_all and not view.new:
                del self._views[query]
        if not self.is_watched:
            self._observer.pause()

    def _tell(self) -> None:
        """Send everybody what has changed; the work is done once for all of one view."""
        self._timer = None
        if not self.is_watched:
            return
        if not self._observer.has_looked:
            self._timer = asyncio.get_running_loop().call_later(_FIRST, self._tell)
            return
        before, shared = self._shared, self.frame()
        self._shared = shared
        changed = merge_patch(before, shared)
        for view in list(self._views.values()):
            rows = view.search.look(self._core.streams.requests, self._now())
            view.tell(shared, changed, rows_of(rows))
        pause = _INTERVAL * max(1.0, len(self._views) / _MOST_IN_FULL)
        self._timer = asyncio.get_running_loop().call_later(pause, self._tell)

    def frame(self) -> Json:
        """Return what everybody is shown."""
        now, history = self._now(), self.recent.history
        if self._classes[0] != int(now):
            self._classes = int(now), self.recent.by_class(now)
        return {
            "now": round(now, 3),
            "source": "live",
            "gateway": dict(self._describe()),
            "promises": self.promises,
            "classes": self._classes[1],
            "point": history[-1] if history else None,
            "sessions": sessions_of(self._core.sessions, now),
            **self._observer.frame,
        }

    async def close(self) -> None:
        """End every stream."""
        for timer in (self._timer, self._counting):
            if timer is not None:
                timer.cancel()
        for exchange in list(self._watchers):
            exchange.write(b"", last=True)
        self._watchers.clear()
        self._views.clear()
        await self._observer.stop()


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _ended(output: Output, end: str, now: float) -> EndedRequest:
    num_tokens, arrival_at = output.text.num_tokens, output.arrival_at
    answered_at = output.answered_at[0] if output.answered_at else None
    spent = now - output.first_at
    latencies = {
        "ttft": output.first_at - arrival_at if num_tokens else None,
        "ttfat": None if answered_at is None else answered_at - arrival_at,
        "tpot": spent / (num_tokens - 1) if num_tokens > 1 else None,
        "e2e": now - arrival_at,
    }
    service, kept = output.standing.service, dict[str, bool]()
    if service is not None and end in ("stop", "length"):
        kept = service.kept(latencies)
    elif service is not None and end == FinishReason.CANCELLED.value:
        kept = service.kept_until(latencies, now - arrival_at)
    elif service is not None and end not in {code.value for code in OWN_FAULT}:
        kept = service.kept_by_failed(latencies)
    return EndedRequest(
        now,
        arrival_at,
        end,
        service.name if service is not None else "",
        output.standing.tenant,
        output.num_prompt_tokens,
        num_tokens,
        output.text.num_reasoning_tokens,
        latencies["ttft"],
        latencies["ttfat"],
        latencies["tpot"],
        all(kept.values()) if kept else None,
        output.request_id,
    )
