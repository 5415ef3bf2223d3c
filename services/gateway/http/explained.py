"""``GET /explain/{request_id}``: a call's lives, and decisions; ``/trace.json``: all lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from math import inf, isnan
from typing import Protocol
from urllib.parse import parse_qs

from headway.console.explanation import explanation
from headway.errors import Code, HeadwayError, invalid
from headway.life.record import CallLives, LifeRecord
from headway.life.trace import trace_of
from services.gateway.openai.json import dumps

TRACE = "/trace.json"
_AT_ONCE = 32
_EVENTS_AT_ONCE = 256


class Explains(Protocol):
    """The part of the gateway's service that knows what has happened to requests."""

    async def explain(self, request_id: str) -> Sequence[str]:
        """Return the scheduler's decisions about a request, as JSON, one each."""

    def life(self, request_id: str) -> LifeRecord | None:
        """Return the life of a request by its own id, None if this gateway does not know it."""

    def call(self, asked: str) -> CallLives:
        """Return the lives of the newest call that an id means."""

    def follow(self, request_id: str, traceparent: str) -> None:
        """Let a request belong to its client's trace."""

    def lives(self, since: float) -> Iterator[LifeRecord]:
        """Yield the lives that ended at or after an instant, and those that are open."""


def ids_behind(asked: str) -> list[str]:
    """Return what a request may be called whose client asks by this: its id, or its answer's.

    An answer's id is the request's behind a word for its kind; ``resp_`` and ``msg_`` stand for a
    chat's.
    """
    for kind in ("resp_", "msg_"):
        rest = asked.removeprefix(kind)
        if rest != asked:
            return [f"chatcmpl-{rest}", rest, asked]
    kind, _, rest = asked.partition("-")
    return [asked, rest] if kind in ("chatcmpl", "cmpl") and rest else [asked]


async def explained(shell: Explains, asked: str, names: Sequence[str]) -> bytes:
    """Return the answer's JSON; ``asked``: the id as the client gave it, ``names``: as we know it.

    Without a scheduler the lives are shown alone; UNAVAILABLE where there is none, either.
    """
    call = next((lives for name in names if (lives := shell.call(name)).outputs), CallLives())
    decisions: Sequence[str] = ()
    try:
        for name in names:
            decisions = decisions or await shell.explain(name)
    except HeadwayError:
        if not call.outputs:
            raise
    return dumps(explanation(asked, call, decisions)).encode()


class TraceDesk:
    """The place where all lives are asked for; one trace is made at a time."""

    def __init__(self, shell: Explains) -> None:
        self._shell = shell
        self._task: asyncio.Task[bytes] | None = None

    async def ask(self, query: str) -> bytes:
        """Return the lives as a trace in Chrome's format; ``since=SECONDS`` leaves older ones out.

        INVALID_ARGUMENT for what is no instant, RESOURCE_EXHAUSTED while a trace is made. Its
        making goes on where its client leaves.
        """
        since = _since(query)
        if self._task is not None and not self._task.done():
            message = "another trace is being made: ask again when it is ready"
            raise HeadwayError(Code.RESOURCE_EXHAUSTED, message, retry_after=1.0)
        self._task = asyncio.get_running_loop().create_task(self._make(since))
        return await asyncio.shield(self._task)

    async def _make(self, since: float) -> bytes:
        lives: list[LifeRecord] = []
        for life in self._shell.lives(since):
            lives.append(life)
            if len(lives) % _AT_ONCE == 0:
                await asyncio.sleep(0)  # tokens go first
        return await asyncio.to_thread(_encoded, lives)


def _encoded(lives: Sequence[LifeRecord]) -> bytes:
    """Return the trace's JSON. The encoder lets no other thread run, so it has a few at a time."""
    trace = trace_of(lives)
    events = trace.pop("traceEvents")
    slices = (events[at : at + _EVENTS_AT_ONCE] for at in range(0, len(events), _EVENTS_AT_ONCE))
    listed = ",".join(dumps(some)[1:-1] for some in slices)
    return f'{{"traceEvents":[{listed}],{dumps(trace)[1:]}'.encode()


def _since(query: str) -> float:
    (text,) = parse_qs(query).get("since", [""])[:1]
    try:
        since = float(text) if text else -inf
    except ValueError:
        since = float("nan")
    if isnan(since):
        raise invalid("since", text[:80], "seconds since the epoch")
    return since
