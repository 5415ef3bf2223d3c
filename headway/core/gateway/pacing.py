"""The pacing of answering tokens: each is released when the pacing policy says.

Reasoning is not delayed. All held tokens are released when a stream ends, so pacing never delays
the end of an answer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.gateway.events import Delivery
from headway.core.reasoning import Markers
from headway.policies.pacing import Pace, Pacing
from headway.request import Request


@dataclass(slots=True, eq=False)
class _Stream:
    """One request's tokens: ``head`` its first ones, ``tail`` the newest of its reasoning."""

    pace: Pace
    prompt: Sequence[int]
    tail: deque[int]
    is_answering: bool
    markers: Markers
    head: list[int] = field(default_factory=list)
    in_hand: deque[Delivery] = field(default_factory=deque)
    armed_for: float | None = None
    num_paced: int = 0


class Pacers:
    """All paced streams of a gateway.

    ``markers`` are the tokens around reasoning; ``own`` has those of a model by its name. Without
    them, or if a request does not reason, all of its tokens belong to the answer.
    """

    def __init__(
        self,
        policy: Pacing,
        markers: Markers | None = None,
        on_end: Callable[[str, int, float], None] = lambda request_id, num_paced, now: None,
        own: Mapping[str, Markers] | None = None,
    ) -> None:
        """``on_end`` hears of each stream that ends how many of its tokens were held."""
        self._policy = policy
        self._on_end = on_end
        self._markers = markers or Markers()
        self._own = own or {}
        self._streams: dict[str, _Stream] = {}
        self._due: list[tuple[float, str]] = []
        self.num_in_hand = 0
        self.num_paced = 0  # tokens that were held, since the start

    @property
    def next_at(self) -> float | None:
        """Instant when the next token is due; its stream may have ended."""
        return self._due[0][0] if self._due else None

    def open(self, request: Request) -> None:
        """Pace the tokens of a new request, if the policy paces at all."""
        if not self._policy.paces:
            return
        service = request.standing.service
        pace = self._policy.pace(service.tpot if service is not None else None)
        markers = self._own.get(request.model, self._markers)
        is_answering = not (markers.end and request.reasons)
        tail: deque[int] = deque(maxlen=len(markers.end))
        stream = _Stream(pace, request.prompt_token_ids, tail, is_answering, markers)
        self._streams[request.request_id] = stream

    def pass_on(self, deliveries: Sequence[Delivery], *, now: float) -> Sequence[Delivery]:
        """Take tokens; return those to deliver now."""
        if not self._streams:
            return deliveries
        going: list[Delivery] = []
        for delivery in deliveries:
            stream = self._streams.get(delivery.request_id)
            if stream is None:
                going.append(delivery)
                continue
            if delivery.before:
                for one in delivery.singles():
                    self._take(stream, one, going, now)
            else:
                self._take(stream, delivery, going, now)
            if delivery.finish_reason is not None:
                del self._streams[delivery.request_id]
                self._on_end(delivery.request_id, stream.num_paced, now)
            elif stream.armed_for is None:
                self._arm(delivery.request_id, stream)
        return going

    def release(self, *, now: float) -> Sequence[Delivery]:
        """Return the tokens that have become due."""
        going: list[Delivery] = []
        while self._due and self._due[0][0] <= now:
            _, request_id = heapq.heappop(self._due)
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.armed_for = None
                self._go(stream, stream.pace.release(now=now), going)
                self._arm(request_id, stream)
        return going

    def end(self, request_id: str) -> Sequence[Delivery]:
        """End a request without a further token; return its held tokens."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return ()
        self.num_in_hand -= len(stream.in_hand)
        return tuple(stream.in_hand)

    def _take(self, stream: _Stream, one: Delivery, going: list[Delivery], now: float) -> None:
        if not stream.is_answering:
            going.append(one)
            if one.token_id is not None:
                stream.is_answering = self._ends_reasoning(stream, one.token_id)
            return
        stream.in_hand.append(one)
        self.num_in_hand += 1
        if one.finish_reason is not None:
            self._go(stream, len(stream.in_hand), going)
            return
        stream.pace.arrived(1, now=now)
        if stream.armed_for is not None and now < stream.armed_for:
            self._hold(stream)  # earlier tokens are not due yet
            return
        self._go(stream, stream.pace.release(now=now), going)
        if stream.in_hand:
            self._hold(stream)

    def _hold(self, stream: _Stream) -> None:
        stream.num_paced += 1
        self.num_paced += 1

    def _ends_reasoning(self, stream: _Stream, token_id: int) -> bool:
        """Return whether the answer follows this token: reasoning has ended, or never began."""
        markers = stream.markers
        stream.tail.append(token_id)
        if tuple(stream.tail) == markers.end:
            return True
        if len(stream.head) >= markers.decided_at:
            return False
        stream.head.append(token_id)
        return markers.never_thinks(stream.prompt, stream.head)

    def _go(self, stream: _Stream, count: int, going: list[Delivery]) -> None:
        self.num_in_hand -= count
        going += [stream.in_hand.popleft() for _ in range(count)]

    def _arm(self, request_id: str, stream: _Stream) -> None:
        """Schedule the stream's next token; each stream has at most one such instant."""
        stream.armed_for = due_at = stream.pace.due_at
        if due_at is not None:
            heapq.heappush(self._due, (due_at, request_id))
