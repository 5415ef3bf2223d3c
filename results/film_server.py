"""The console's page over a simulated run: a film of it, and the lives of its requests."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from headway.console.explanation import explanation
from headway.console.patch import merge_patch
from headway.life.record import CallLives, LifeRecord
from headway.request import is_named
from headway.sim.experiment import Run
from headway.sim.film import Film
from services.gateway.console.pages import CONSOLE, files, headers
from services.gateway.http.exchange import HttpRefusal
from services.gateway.http.origins import Origins
from services.scheduler.explanations import lines_about

_EXPLAIN = "/explain/"
_INTERVAL = 0.5
_HELD = 2.0  # seconds between two signs of life after the last frame


class FilmServer(ThreadingHTTPServer):
    """A server for browsers on this machine, and nobody else; ``port`` 0: any free one."""

    daemon_threads = True

    def __init__(self, film: Film, run: Run, port: int = 0) -> None:
        self.film, self.run = film, run
        self.origins = Origins((), (), loopback=True)
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self.server_port}{CONSOLE}"

    def life(self, request_id: str) -> LifeRecord | None:
        """Return the life of a request of the run."""
        return next((x for x in self.run.lives if is_named(x.request_id, request_id)), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FilmServer

    def do_GET(self) -> None:
        given = {k.lower().encode(): v.encode("latin-1") for k, v in self.headers.items()}
        try:
            self.server.origins.check(given)
        except HttpRefusal as refusal:
            self._answer(403, "text/plain", str(refusal).encode())
            return
        url = urlsplit(self.path)
        if url.path in files():
            file = files()[url.path]
            self._answer(200, file.content_type, file.body, dict(headers()))
        elif url.path == f"{CONSOLE}/stream":
            self._play(parse_qs(url.query))
        elif url.path.startswith(_EXPLAIN):
            self._explain(unquote(url.path.removeprefix(_EXPLAIN)))
        else:
            self._answer(404, "text/plain", b"there is the console alone: /console\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _answer(
        self, status: int, kind: str, body: bytes, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**(more or {}), "content-type": kind}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _explain(self, request_id: str) -> None:
        life = self.server.life(request_id)
        decisions = lines_about(request_id, self.server.run.decisions)
        if life is None and not decisions:
            said = {"error": {"message": f"the run has no request {request_id[:80]!r}"}}
            self._answer(404, "application/json", json.dumps(said).encode())
            return
        call = CallLives() if life is None else CallLives([life])
        self._answer(
            200, "application/json", json.dumps(explanation(request_id, call, decisions)).encode()
        )

    def _play(self, query: Mapping[str, Sequence[str]]) -> None:
        """Send the frames from ``from`` on, two a second; with ``hold`` that frame alone."""
        frames = self.server.film.frames
        asked = query.get("from", ["0"])[-1]
        begin = min(int(asked[:6]) if asked.isdecimal() else 0, len(frames) - 1)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("cache-control", "no-store")
        self.send_header("connection", "close")
        self.end_headers()
        points = [frame["point"] for frame in frames[: begin + 1] if frame["point"]]
        tell = partial(_event, self.wfile)
        try:
            tell("history", {"columns": self.server.film.columns, "rows": points[-600:]})
            before: dict[str, Any] = {}
            for place in range(begin, begin + 1 if "hold" in query else len(frames)):
                frame = {**frames[place], "film": {"at": place, "num_frames": len(frames)}}
                if before:
                    time.sleep(_INTERVAL)
                tell("patch" if before else "state", merge_patch(before, frame))
                before = frame
            while True:
                time.sleep(_HELD)
                tell("patch", {})
        except OSError:
            self.close_connection = True  # the page has gone


def _event(file: Any, name: str, data: Mapping[str, Any]) -> None:
    file.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
    file.flush()
