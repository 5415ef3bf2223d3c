"""The gateway's open requests and their timers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headway.core.gateway.events import Delivery, Pause
from headway.request import Request


@dataclass(slots=True, eq=False)
class OpenRequest:
    """One request that has not ended."""

    request: Request
    """The current attempt."""
    output: list[int] = field(default_factory=list)
    worker_id: str = ""
    """The worker it was placed on last or that sent its newest token; "" before."""
    source_id: str = ""
    """The worker that sent its newest token; "" before the attempt's first one."""
    first_at: float = 0.0
    """Instant of its first token."""
    last_at: float = 0.0
    """Instant of its newest token."""
    retry_at: float | None = None
    """Instant of its resubmission; None unless that is planned."""
    unsent_since: float | None = None
    """Instant since which it has waited for a scheduler."""
    gap_since: float | None = None
    """Instant since which it has lacked a token whose successor is in ``early``."""
    early: dict[int, Delivery] = field(default_factory=dict)
    """Tokens that came before their predecessor, by index."""
    num_failures: int = 0
    """Number of times that a worker failed to compute it."""

    @property
    def request_id(self) -> str:
        """The client's name for it, the same for every attempt."""
        return self.request.request_id

    @property
    def stream_id(self) -> int:
        """The current attempt's name on the wire."""
        return self.request.stream_id

    def next_attempt(self, stream_id: int, retry_at: float) -> None:
        """Forget the worker; continue after the tokens so far under a new stream id."""
        attempt = self.request.attempt + 1
        self.request = replace(self.current(), attempt=attempt, stream_id=stream_id)
        self.worker_id = self.source_id = ""
        self.retry_at = retry_at
        self.unsent_since = self.gap_since = None
        self.early.clear()

    def pause(self, now: float) -> Pause:
        """Return the pause since its newest token."""
        seconds, spent = now - self.last_at, self.last_at - self.first_at
        num_gaps = len(self.output) - 1
        return Pause(seconds, seconds * num_gaps / spent if spent > 0 else 0.0)

    def current(self) -> Request:
        """Return the attempt with all tokens so far."""
        if len(self.request.output_token_ids) == len(self.output):
            return self.request
        return replace(self.request, output_token_ids=tuple(self.output))


class OpenRequests:
    """All open requests, by request id and by the current attempt's stream id."""

    def __init__(self) -> None:
        self.by_stream: dict[int, OpenRequest] = {}
        self._by_id: dict[str, OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(self._by_id.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def find(self, request_id: str) -> OpenRequest | None:
        """Return the open request of that id."""
        return self._by_id.get(request_id)

    def add(self, state: OpenRequest) -> None:
        """Open a request."""
        assert state.request_id not in self._by_id, "request ids are never reused"
        self._by_id[state.request_id] = state
        self.by_stream[state.stream_id] = state

    def rename(self, state: OpenRequest, stream_id: int, retry_at: float) -> None:
        """Start its next attempt: the old stream id is unknown from now on."""
        del self.by_stream[state.stream_id]
        state.next_attempt(stream_id, retry_at)
        self.by_stream[stream_id] = state

    def remove(self, state: OpenRequest) -> None:
        """Close a request."""
        del self._by_id[state.request_id]
        del self.by_stream[state.stream_id]


class Timers:
    """Instants at which open requests need attention; those of closed requests are skipped."""

    def __init__(self, requests: OpenRequests) -> None:
        self._requests = requests
        self._heap: list[tuple[float, str]] = []

    @property
    def next_at(self) -> float | None:
        """The earliest instant; it may belong to a request that has ended."""
        return self._heap[0][0] if self._heap else None

    def add(self, at: float, request_id: str) -> None:
        """Check the request at or after ``at``."""
        heapq.heappush(self._heap, (at, request_id))
        # An open request rarely has over two timers: far beyond that most are stale.
        if len(self._heap) > 64 + 8 * len(self._requests):
            self._heap = [entry for entry in self._heap if entry[1] in self._requests]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> Iterator[OpenRequest]:
        """Yield the requests whose instant has come."""
        while self._heap and self._heap[0][0] <= now:
            _, request_id = heapq.heappop(self._heap)
            state = self._requests.find(request_id)
            if state is not None:
                yield state
