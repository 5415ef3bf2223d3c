"""Reports that a measurement waits for, by stream."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from headway.errors import HeadwayError

T = TypeVar("T")


class Awaited(Generic[T]):
    """Futures by stream id."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[T]] = {}

    def expect(self, stream_id: int) -> asyncio.Future[T]:
        """Return the future of a stream's value."""
        future = asyncio.get_running_loop().create_future()
        return self._futures.setdefault(stream_id, future)

    def settle(self, stream_id: int, value: T) -> None:
        """Hand a value to the one that waits for it, if any."""
        future = self._futures.pop(stream_id, None)
        if future is not None and not future.done():
            future.set_result(value)

    def fail(self, error: HeadwayError) -> None:
        """Raise the error wherever a value is awaited."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # that no task awaits it is no error
