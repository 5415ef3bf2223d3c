"""What an earlier leader wrote down, until workers and gateways have told of it themselves.

It may be a little old, so it is only ever a hint: what a worker says it holds wins, and a request
comes back with the gateway that owns its prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from headway.core.scheduler.events import SavedRequest
from headway.core.scheduler.state import SchedulerState
from headway.request import Request, StreamKey


class Memory:
    """Where requests were when the earlier leader wrote last.

    ``held_back``: requests whose gateway has submitted them again, while a worker that may have
    them has yet to be heard: to dispatch them now could run them twice.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._saved: dict[StreamKey, SavedRequest] = {}
        self._unheard: dict[str, None] = {}
        self._held_back: dict[StreamKey, Request] = {}
        self._until = inf

    @property
    def next_wakeup(self) -> float:
        """When what is left is forgotten; infinite if nothing is."""
        return self._until

    @property
    def num_held_back(self) -> int:
        """Requests that wait for a worker's word."""
        return len(self._held_back)

    def recall(self, saved: Iterable[SavedRequest], unheard: Iterable[str], *, now: float) -> None:
        """Begin with this; ``unheard`` are the members that have yet to send a snapshot."""
        self._saved = {each.key: each for each in saved if each.key not in self._state.tracked}
        self._unheard = dict.fromkeys(unheard)
        self._until = now + self._state.settings.graces.memory if self._saved else inf

    def take(self, key: StreamKey) -> SavedRequest | None:
        """What was known of a request; from now on it is tracked."""
        return self._saved.pop(key, None)

    # --- requests that a silent worker may have ---------------------------------------

    def holds_back(self, request: Request) -> bool:
        """Whether the request must wait for a worker's word; if so it is kept here."""
        if not self._saved or not self._may_run(request.key):
            return False
        self._held_back[request.key] = request
        return True

    def _may_run(self, key: StreamKey) -> bool:
        saved = self._saved.get(key)
        if saved is None:
            return False
        target = saved.target.worker_id if saved.target is not None else ""
        return saved.worker_id in self._unheard or target in self._unheard

    def heard(self, worker_id: str) -> None:
        """A worker has said what it holds, or is gone."""
        self._unheard.pop(worker_id, None)

    def cancel(self, key: StreamKey) -> None:
        """Nobody waits for this request any more."""
        self._held_back.pop(key, None)

    def cancel_all(self, gateway_id: str) -> None:
        """Nor for any of this gateway's."""
        for key in [key for key in self._held_back if key.gateway_id == gateway_id]:
            del self._held_back[key]

    def released(self, *, now: float) -> list[Request]:
        """Requests that need to wait no longer, in the order in which they came."""
        if now >= self._until:
            self._unheard.clear()
        if not self._held_back:
            return []
        released = [r for r in self._held_back.values() if not self._may_run(r.key)]
        for request in released:
            del self._held_back[request.key]
        return released

    def expire(self, *, now: float) -> None:
        """Forget, and have forgotten, what nobody has told of in all that time."""
        if now < self._until:
            return
        for key in self._saved:
            self._state.changed(key)
        self._saved.clear()
        self._until = inf
