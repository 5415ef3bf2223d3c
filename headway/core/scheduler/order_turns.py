"""Orders to one worker, while it has not taken earlier ones: dispatches of tenants take turns.

A worker takes a dispatch in a fraction of a millisecond. So thousands that one tenant's requests
have set free would hold up another's for seconds, in the order in which they were sent. No more
than a few are on their way. The others wait here, and whose turn it is goes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headway.messages import (
    CancelHandoff,
    CancelStream,
    Dispatch,
    Handoff,
    Order,
    Tuned,
    WantedReports,
)
from headway.request import Request, StreamKey

MOST_UNTAKEN = 16
"""Requests on their way to a worker: what it takes in some 5 ms."""


class OrderTurns:
    """The orders to a worker that wait; what a call returns is to be sent, in order.

    A dispatch has its turn among those of other tenants (that of its first request). An order for
    one request, as its cancel, goes with its dispatch where that waits, and at once otherwise. Any
    other order that names requests, or sends the worker away, goes behind all that was ordered
    before it.
    """

    def __init__(self, most: int = MOST_UNTAKEN) -> None:
        self._most = most
        self._untaken: dict[int, int] = {}
        """Requests of each dispatch that is on its way."""
        self._num_untaken = 0
        self._lanes: dict[str, deque[Dispatch]] = {}
        """Dispatches that wait, by tenant; the one whose turn is next first."""
        self._held: dict[StreamKey, list[Order]] = {}
        """Requests whose dispatch waits, with what goes right behind it."""

    def __len__(self) -> int:
        """Number of requests that wait."""
        return len(self._held)

    def take(self, order: Order) -> Sequence[Order]:
        """Take an order; return what goes to the worker now."""
        match order:
            case Dispatch():
                requests = _requests(order)
                is_repeated = any(request.key in self._held for request in requests)
                earlier = self.flush() if is_repeated else ()
                tenant = requests[0].standing.tenant if requests else ""
                self._lanes.setdefault(tenant, deque()).append(order)
                self._held |= {request.key: [] for request in requests}
                return (*earlier, *self._next())
            case CancelStream(key) | Handoff(key=key) | CancelHandoff(key=key):
                if key not in self._held:
                    return (order,)
                self._held[key].append(order)
                return ()
            case Tuned() | WantedReports():
                return (order,)
            case _:
                return (*self.flush(), order)

    def taken(self, dispatch_id: int) -> Sequence[Order]:
        """Note that the worker has taken a dispatch; return what goes to it now."""
        self._num_untaken -= self._untaken.pop(dispatch_id, 0)
        return self._next()

    def flush(self) -> Sequence[Order]:
        """Return all that waits."""
        orders = list[Order]()
        while self._lanes:
            orders += self._pop()
        return orders

    def _next(self) -> Sequence[Order]:
        orders = list[Order]()
        while self._lanes and self._num_untaken < self._most:
            orders += self._pop()
        return orders

    def _pop(self) -> Sequence[Order]:
        """Take the next dispatch and what goes with it; its lane then goes behind the others."""
        tenant = next(iter(self._lanes))
        lane = self._lanes.pop(tenant)
        dispatch = lane.popleft()
        if lane:
            self._lanes[tenant] = lane
        requests = _requests(dispatch)
        self._untaken[dispatch.dispatch_id] = len(requests)
        self._num_untaken += len(requests)
        return [dispatch, *(o for request in requests for o in self._held.pop(request.key, ()))]


def _requests(dispatch: Dispatch) -> Sequence[Request]:
    return [request for batch in dispatch.batches for request in batch.requests]
