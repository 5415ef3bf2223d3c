"""Routes of the console: who may see it, its files, and its data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from headway.core.gateway.rows import RowQuery
from headway.errors import Code, HeadwayError, invalid
from services.gateway.auth import KeyRing
from services.gateway.console.feed import STREAM, ConsoleFeed
from services.gateway.console.pages import CONSOLE, files, headers
from services.gateway.console.what_if import WhatIfDesk
from services.gateway.http.exchange import Exchange, HttpRefusal
from services.gateway.http.origins import is_here
from services.gateway.openai.replies import JSON, respond_error

_STREAM = f"{CONSOLE}/stream"
WHAT_IF = f"{CONSOLE}/what-if"
"""The path of replays: a POST with a JSON object."""
_NUM_ROWS = 50
_FIELDS = {
    "sort": "sort",
    "class": "service_class",
    "tenant": "tenant",
    "worker": "worker",
    "phase": "phase",
    "session": "session",
}


class ConsoleRoutes:
    """The console over HTTP.

    Where there are keys, its data is for an operator's. Without keys, all of it is for clients on
    this machine. The page itself holds no data: with keys it is shown to everybody, to ask for one.
    """

    def __init__(
        self,
        feed: ConsoleFeed,
        desk: WhatIfDesk,
        keys: KeyRing,
        unexpected: Callable[[Exception, str], None],
        *,
        needs_key: bool,
    ) -> None:
        """``unexpected`` logs a bug."""
        self.feed = feed
        self._desk = desk
        self._tasks: set[asyncio.Task[None]] = set()
        self._keys = keys
        self._unexpected = unexpected
        self._needs_key = needs_key

    @staticmethod
    def has(path: str) -> bool:
        """Return whether a path is the console's."""
        return path in (_STREAM, WHAT_IF) or path in files()

    def is_get(self, path: str) -> bool:
        """Return whether a path is the console's and takes GET."""
        return path != WHAT_IF and self.has(path)

    def is_open(self, path: str) -> bool:
        """Return whether a path is served without a key."""
        return path in files()

    def screen(self, path: str, name: str, address: str) -> None:
        """Refuse who may not see it; ``name`` is the key's."""
        if not self._needs_key and not is_here(address):
            message = (
                "the console is for clients on this machine, because this gateway has no keys: "
                "start it with --api-key-file and give an operator's key"
            )
            raise HttpRefusal(403, HeadwayError(Code.PERMISSION_DENIED, message))
        if not self.is_open(path) and not self._keys.is_operator(name):
            message = "only an operator's key may see the console; ask the operator"
            raise HttpRefusal(403, HeadwayError(Code.PERMISSION_DENIED, message))

    def serve(self, exchange: Exchange) -> None:
        """Answer; HeadwayError for a query that is none."""
        if exchange.path == _STREAM:
            if exchange.method == "HEAD":
                exchange.respond(200, STREAM, b"")
                return
            self.feed.watch(exchange, row_query(exchange.query))
            return
        if exchange.path == WHAT_IF:
            task = asyncio.get_running_loop().create_task(self._answer(exchange))
            exchange.on_gone = partial(_cancel, task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        page = files()[exchange.path]
        for name, value in headers():
            exchange.add_header(name, value)
        body = page.body
        if "gzip" in exchange.header("accept-encoding"):
            exchange.add_header("content-encoding", "gzip")
            body = page.packed
        exchange.respond(200, page.content_type, body)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            answer = await self._desk.ask(exchange.body)
        except HeadwayError as error:
            respond_error(exchange, error)
        except Exception as error:
            self._unexpected(error, exchange.path)
            message = "the gateway failed on this request; it has been logged"
            respond_error(exchange, HeadwayError(Code.INTERNAL, message))
        else:
            exchange.respond(200, JSON, answer)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def row_query(query: str) -> RowQuery:
    """Return what a stream's query asks for; HeadwayError for what is unknown or out of range."""
    try:
        asked = parse_qs(query, max_num_fields=16, keep_blank_values=True)
    except ValueError as error:
        raise invalid("the query", query[:80], "at most 16 fields") from error
    known: dict[str, Any] = {
        ours: asked[theirs][-1][:256] for theirs, ours in _FIELDS.items() if theirs in asked
    }
    rows = asked.get("rows", [str(_NUM_ROWS)])[-1]
    if not rows.isascii() or not rows.isdecimal():
        raise invalid("rows", rows[:80], "a whole number")
    return RowQuery(**known, num_rows=int(rows[:9]))
