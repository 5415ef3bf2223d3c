"""Records of an earlier leader, kept until workers and gateways have reported.

They may be slightly outdated, so they are only hints: a worker's own report wins, and a request
returns with the gateway that owns its prompt. A leader that has been replaced, and does not know
it yet, writes nothing down any more. Where it dispatches a request, its gateway knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from headway.core.scheduler.events import SavedRequest
from headway.core.scheduler.state import SchedulerState
from headway.request import Request, StreamKey


class LeaderMemory:
    """Places of requests when the earlier leader last wrote them.

    A resubmitted request is held back while a worker that may have it has not reported: dispatching
    it now could run it twice. Such a worker need not have a lease: that ends while the store is
    away, or the worker is cut off from it. Where no report comes, the worker may be cut off from
    the leader alone: its gateway stops the attempt, and asks for another one.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._saved: dict[StreamKey, SavedRequest] = {}
        self._heard: set[str] = set()
        self._gone: set[str] = set()
        self._held_back: dict[StreamKey, Request] = {}
        self._until = -inf

    @property
    def next_wakeup(self) -> float:
        """Instant when the remaining records are dropped; infinite for none."""
        return self._until if self._saved or self._held_back else inf

    @property
    def num_held_back(self) -> int:
        """Number of requests that wait for a worker's report."""
        return len(self._held_back)

    def recall(self, saved: Iterable[SavedRequest], heard: Iterable[str], *, now: float) -> None:
        """Start from these records; ``heard`` are the workers that have sent a snapshot."""
        self._saved = {each.key: each for each in saved if each.key not in self._state.tracked}
        self._heard = set(heard)
        self._until = now + self._state.settings.graces.memory

    def take(self, key: StreamKey) -> SavedRequest | None:
        """Remove and return the record of a request that is tracked, or refused, from now on."""
        saved = self._saved.pop(key, None)
        if saved is not None:
            self._state.changed(key)  # the store has it yet
        return saved

    # --- requests that an unheard worker may hold -------------------------------------

    def holds_back(self, request: Request, *, now: float) -> bool:
        """Keep the request and return True if it must wait for a worker's report."""
        if now >= self._until or not self._unheard(request):
            return False
        self._held_back[request.key] = request
        return True

    def _unheard(self, request: Request) -> set[str]:
        """Return the workers that may run it and have not reported."""
        places = set(request.placed_on)
        saved = self._saved.get(request.key)
        if saved is not None:
            places.add(saved.worker_id)
            if saved.target is not None:
                places.add(saved.target.worker_id)
        return places - self._heard - {""}  # "": on no worker

    def heard(self, worker_id: str, *, now: float) -> None:
        """Note that a worker has reported its requests."""
        if now < self._until:
            self._heard.add(worker_id)
            self._gone.discard(worker_id)

    def gone(self, worker_id: str, *, now: float) -> None:
        """Note that a worker cannot be reached, or is no member any more."""
        if now < self._until and worker_id not in self._heard:
            self._gone.add(worker_id)

    def cancel(self, key: StreamKey) -> None:
        """Forget a request that was cancelled."""
        self._held_back.pop(key, None)

    def cancel_all(self, gateway_ids: Collection[str]) -> None:
        """Forget all requests of gateways."""
        for key in [key for key in self._held_back if key.gateway_id in gateway_ids]:
            del self._held_back[key]

    def released(self) -> list[Request]:
        """Return requests that no other worker runs, in order of arrival."""
        return self._take_out([r for r in self._held_back.values() if not self._unheard(r)])

    def lost(self, *, now: float) -> list[Request]:
        """Return requests of which no report will come, in order of arrival."""
        is_over, held_back = now >= self._until, self._held_back.values()
        return self._take_out([r for r in held_back if is_over or self._unheard(r) & self._gone])

    def _take_out(self, requests: list[Request]) -> list[Request]:
        for request in requests:
            del self._held_back[request.key]
        return requests

    def expire(self, *, now: float) -> None:
        """Drop, also in the store, records that no report has confirmed in time."""
        if now < self._until:
            return
        for key in self._saved:
            self._state.changed(key)
        self._saved.clear()
        self._heard.clear()
        self._gone.clear()
