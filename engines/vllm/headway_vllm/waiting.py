"""vLLM's waiting queue in the order of a batching policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from headway.request import StreamKey

Order = tuple[Any, ...]
"""A place in the policy's order, rank and key, the least first; with a third, right behind it."""


class RankedWaiting(RequestQueue):
    """A view of ``RankedQueue.waiting``, which is kept sorted as ranks change.

    ``redraw`` begins a step. Requests at or behind its ``limit`` are not shown in that step; one
    that comes back during a step is shown in the next.
    """

    def __init__(
        self, ranked: Callable[[], Sequence[Any]], key_of: Callable[[Request], StreamKey]
    ) -> None:
        self._ranked = ranked
        self._key_of = key_of
        self._members: dict[StreamKey, Request] = {}
        self._places: Sequence[Any] = ()
        self._next = 0
        self._limit: Order | None = None

    def redraw(self, limit: Order | None = None) -> None:
        """Begin a step."""
        self._places = list(self._ranked()) if self._members else ()
        self._next, self._limit = 0, limit

    def best_first(self) -> Iterator[tuple[Order, Request]]:
        """Yield the requests with their places, best first, as they wait now."""
        for rank, key, _ in list(self._ranked()):
            request = self._members.get(key)
            if request is not None:
                yield (rank, key), request

    def _first(self) -> Request | None:
        while self._next < len(self._places):
            rank, key, _ = self._places[self._next]
            if self._limit is not None and (rank, key) >= self._limit:
                return None
            request = self._members.get(key)
            if request is not None:
                return request
            self._next += 1
        return None

    # --- vLLM's interface -------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take a request in."""
        self._members[self._key_of(request)] = request

    def pop_request(self) -> Request:
        """Remove and return the best one."""
        request = self.peek_request()
        del self._members[self._key_of(request)]
        self._next += 1
        return request

    def peek_request(self) -> Request:
        """Return the best one."""
        request = self._first()
        if request is None:
            raise IndexError("no request waits that may be admitted in this step")
        return request

    def prepend_request(self, request: Request) -> None:
        """Take a request in: its rank says where."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Take requests in."""
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Remove a request, if it is here."""
        self._members.pop(self._key_of(request), None)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove requests."""
        for request in list(requests):
            self.remove_request(request)

    def __bool__(self) -> bool:
        return self._first() is not None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self.best_first())
