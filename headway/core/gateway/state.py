"""The gateway's open requests and their timers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import NamedTuple

from headway.core.gateway.events import Delivery, Pause
from headway.core.gateway.lives import OpenLife
from headway.messages import StreamFailure
from headway.request import Request

_MOST_HELD = 256  # of one request
_MOST_HELD_OF_ALL = 16_384


class StreamStage(Enum):
    """The stage of an open request's stream; ``streams.py`` alone changes it."""

    NEW = "has just come"
    UNSENT = "waits until a scheduler is connected"
    SENT = "is at the scheduler, which has not named a worker"
    RUNNING = "has a worker"
    LACKING = "has a worker, and lacks a token that a later one has overtaken"
    ORPHANED = "awaits the scheduler's word on its worker, whose token stream broke"
    RETRYING = "waits for its next attempt"
    SUSPECTED = "may be what kills its workers, and waits until no other such one runs"


class Held(NamedTuple):
    """A token, or the failure of an attempt, that waits for the scheduler's word on its worker."""

    worker_id: str
    at: int  # its index in the output; -1 for a failure
    said: Delivery | StreamFailure


class Death(NamedTuple):
    """The loss of a worker that had a request, as far as is known."""

    worker_id: str
    process_id: str
    """"" if it is not known."""
    was_alone: bool
    """True if the worker had no other request of this gateway."""
    is_told: bool
    """True if the scheduler has said it, False if the token stream broke."""

    @property
    def process(self) -> str:
        """Its name, or that of its worker if it has none."""
        return self.process_id or self.worker_id

    def is_told_by(self, other: Death) -> bool:
        """Return whether ``other`` is another word on the same death.

        Where one of the two does not name the process, a broken stream and the scheduler's next
        word on its worker are one death.
        """
        if self.process_id and other.process_id:
            return self.process_id == other.process_id
        return self.worker_id == other.worker_id and other.is_told and not self.is_told


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
    first_worker_id: str = ""
    """The worker that sent it; "" before."""
    num_cached: int = 0
    """Tokens of its prompt that were found in a prefix cache; known with the first token."""
    last_at: float = 0.0
    """Instant of its newest token."""
    placed_at: float = 0.0
    """Instant at which it was placed on its worker."""
    stage: StreamStage = StreamStage.NEW
    due_at: float = inf
    """Instant at which its stage has lasted long enough."""
    early: dict[int, Delivery] = field(default_factory=dict)
    """Tokens that came before their predecessor, by index."""
    decision: str = ""
    """The scheduler's last word on where it is, and why, for its client."""
    sources: tuple[str, ...] = ()
    """The workers whose tokens are taken: the one that has it, and the one it is moving to."""
    former: set[str] = field(default_factory=set)
    """Workers that had this attempt and have it no more."""
    held: list[Held] = field(default_factory=list)
    """Tokens of workers that are no source, or not yet."""
    num_tries: int = 0
    """Attempts since it last made progress."""
    deaths: list[Death] = field(default_factory=list)
    """Deaths of its workers since it last made progress."""
    last_loss: str = ""
    """Why its last attempt failed."""
    num_tokens_before: int = 0
    """Output tokens at the last failed attempt."""
    num_failures: int = 0
    """Number of times that a worker failed to compute it."""
    levels_spent: int = 0
    """MemGuard's levels whose credit it had spent at its newest token."""
    may_be_cut: bool = False
    """True if its deadline ends it with what it has."""
    life: OpenLife | None = None
    """Its life so far; None where lives are not written down."""

    @property
    def request_id(self) -> str:
        """The client's name for it, the same for every attempt."""
        return self.request.request_id

    @property
    def stream_id(self) -> int:
        """The current attempt's name on the wire."""
        return self.request.stream_id

    def next_attempt(self, stream_id: int) -> None:
        """Forget the worker; continue after the tokens so far under a new stream id."""
        attempt = self.request.attempt + 1
        self.sources = ()
        self.request = replace(self.current(), attempt=attempt, stream_id=stream_id)
        self.worker_id = self.source_id = ""
        self.early.clear()
        self.former.clear()

    def pause(self, now: float) -> Pause:
        """Return the pause since its newest token."""
        seconds, spent = now - self.last_at, self.last_at - self.first_at
        num_gaps = len(self.output) - 1
        return Pause(seconds, seconds * num_gaps / spent if spent > 0 else 0.0)

    def current(self) -> Request:
        """Return the attempt with all tokens so far, its spent credits, and where it is."""
        request = self.request
        if len(request.output_token_ids) == len(self.output) and request.placed_on == self.sources:
            return request
        return replace(
            request,
            output_token_ids=tuple(self.output),
            levels_spent=self.levels_spent,
            placed_on=self.sources,
        )


class OpenRequests:
    """All open requests, by request id and by the current attempt's stream id; their timers."""

    def __init__(self) -> None:
        self.by_stream: dict[int, OpenRequest] = {}
        self._by_id: dict[str, OpenRequest] = {}
        self._num_held = 0
        self._timers: list[tuple[float, str]] = []

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

    def rename(self, state: OpenRequest, stream_id: int) -> None:
        """Start its next attempt: the old stream id is unknown from now on."""
        del self.by_stream[state.stream_id]
        self.release(state)
        state.next_attempt(stream_id)
        self.by_stream[stream_id] = state

    def remove(self, state: OpenRequest) -> None:
        """Close a request."""
        del self._by_id[state.request_id]
        del self.by_stream[state.stream_id]
        self.release(state)

    def hold(self, state: OpenRequest, held: Held) -> None:
        """Keep it until its worker is named; beyond the bounds it is dropped, as if lost."""
        if len(state.held) < _MOST_HELD and self._num_held < _MOST_HELD_OF_ALL:
            state.held.append(held)
            self._num_held += 1

    def release(self, state: OpenRequest, *worker_ids: str) -> list[Held]:
        """Take out what is held of these workers, or of all where none is given."""
        if not state.held:
            return []
        released = [h for h in state.held if not worker_ids or h.worker_id in worker_ids]
        state.held = [h for h in state.held if worker_ids and h.worker_id not in worker_ids]
        self._num_held -= len(released)
        return released

    def fill_in(self, state: OpenRequest, index: int) -> Delivery | None:
        """Take out the token of this index that a former worker has sent; None without one."""
        for place, (worker_id, at, said) in enumerate(state.held):
            if at == index and worker_id in state.former and isinstance(said, Delivery):
                del state.held[place]
                self._num_held -= 1
                return said
        return None

    # --- timers -----------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """The earliest instant at which an open request needs attention."""
        while self._timers and self._timers[0][1] not in self._by_id:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def wake_at(self, at: float, state: OpenRequest) -> None:
        """Check the request at or after ``at``."""
        heapq.heappush(self._timers, (at, state.request_id))
        # An open request needs two timers at most: far beyond that most are stale.
        if len(self._timers) > 64 + 8 * len(self._by_id):
            self._timers = [entry for entry in set(self._timers) if self._is_needed(*entry)]
            heapq.heapify(self._timers)

    def _is_needed(self, at: float, request_id: str) -> bool:
        """Return whether a request is open and still needs attention at this instant."""
        state = self._by_id.get(request_id)
        return state is not None and at in (state.due_at, state.request.deadline_at)

    def pop_due(self, now: float) -> Iterator[OpenRequest]:
        """Yield the requests whose instant has come."""
        while self._timers and self._timers[0][0] <= now:
            state = self._by_id.get(heapq.heappop(self._timers)[1])
            if state is not None:
                yield state
