"""Probes over HTTP, beside the metrics: ``/ready`` and ``/live`` for who has no certificate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

_HUNG_AFTER = 30.0

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Probes:
    """The answers to a container's probes; another thread reads it."""

    def __init__(self) -> None:
        self.is_serving = False
        self._beat_at: float | None = None

    def beat(self) -> None:
        """Note that the event loop runs."""
        self._beat_at = time.monotonic()

    @property
    def is_alive(self) -> bool:
        """False if the event loop has run once and has then hung."""
        return self._beat_at is None or time.monotonic() - self._beat_at < _HUNG_AFTER

    def beside(self, app: WsgiApp) -> WsgiApp:
        """Return an application that answers the probes' paths, and ``app`` all others."""

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            match environ["PATH_INFO"]:
                case "/ready":
                    is_well = self.is_serving
                case "/live":
                    is_well = self.is_alive
                case _:
                    return app(environ, start_response)
            status, text = ("200 OK", b"ok\n") if is_well else ("503 Service Unavailable", b"no\n")
            start_response(status, [("Content-Type", "text/plain")])
            return [text]

        return answer
