"""An HTTP exchange without a connection."""

from __future__ import annotations

from collections.abc import Callable


class Sent:
    """An exchange that keeps what is answered."""

    on_gone: Callable[[], None] | None = None
    started = False
    ended = False
    body = b""
    is_read_slowly = False

    def add_header(self, name: str, value: str) -> None:
        """Keep none."""

    def respond(self, status: int, content_type: str, body: bytes) -> None:
        self.body, self.ended = body, True

    def start(self, status: int, content_type: str) -> None:
        self.started = True

    def write(self, data: bytes, *, last: bool = False) -> None:
        self.body += data
        self.ended = last

    def abort(self) -> None:
        """Nothing is left to drop."""
