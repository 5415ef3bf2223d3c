"""Further attempts at a request: how many it has, and requests that may kill their workers.

An attempt that makes progress is not held against its request. A request whose worker has died
twice before it made progress is suspected to be the cause:

- If it was this gateway's only request on both workers, and the scheduler has lost both processes,
  it gets no further attempt.
- Otherwise it gets one more when no other suspect runs. If its worker dies again, it was the cause.

A death shows as a broken token stream and as the scheduler's word, which count once. A worker that
opens its token stream again, or goes on sending tokens, has not died, nor has one whose process the
scheduler reaches again. Nor has a worker died of a request that it never took: one that was dead
before is noticed later. A broken stream tells so only of a worker that has sent something since the
request was placed there; for the others the scheduler knows whether their worker had taken them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.core.gateway.state import Death, OpenRequest, OpenRequests

_MOST_DEATHS = 4096
PROGRESS = 16
"""Tokens after which earlier attempts and deaths are forgiven.

One token is too few: a request may get it from a prefill worker and kill each decode worker.
"""


def forgive(state: OpenRequest) -> None:
    """Forget earlier attempts and deaths if the request has made progress since."""
    if len(state.output) - state.num_tokens_before >= PROGRESS:
        state.num_tries = 0
        state.deaths.clear()
    state.num_tokens_before = len(state.output)


class Suspects:
    """The requests whose workers have died ``most`` times; one of them runs at a time."""

    def __init__(self, requests: OpenRequests, most: int) -> None:
        self._requests = requests
        self._most = most
        self._waiting: dict[str, None] = {}
        self._on_trial = ""
        self._heard_at: dict[str, float] = {}
        """By worker with an open token stream: the instant of its newest batch."""
        self._unsure: dict[str, dict[str, str]] = {}
        """By worker that the scheduler has lost, but whose stream is still open: what it had.

        These are requests, each with the process that the scheduler has lost.
        """
        self._died: dict[tuple[str, str], None] = {}
        """Workers and their processes whose deaths were counted, the newest last."""

    def lost(self, states: Sequence[OpenRequest], process_id: str) -> list[OpenRequest]:
        """Count a death that the scheduler tells for all that had the worker; return the cause."""
        guilty = self._know_of(process_id) if process_id else []
        worker_id = states[0].worker_id if states else ""
        if worker_id in self._heard_at:
            unsure = self._unsure.setdefault(worker_id, {})
            unsure.update((state.request_id, process_id) for state in states)
            return guilty
        death = Death(worker_id, process_id, len(states) == 1, is_told=True)
        return guilty + self._count([each for each in states if each not in guilty], death)

    def _know_of(self, process_id: str) -> list[OpenRequest]:
        """Note that the scheduler, too, has lost a process; return whom that proves the cause."""
        if not any(process_id == counted for _, counted in self._died):
            return []
        guilty = []
        for state in self._requests:
            for place, death in enumerate(state.deaths):
                if death.process_id == process_id:
                    state.deaths[place] = death._replace(is_told=True)
                    guilty += [state] if self._is_proven(state) else []
        return guilty

    def _is_proven(self, state: OpenRequest) -> bool:
        """Return whether it was alone on so many workers that surely died.

        The process of a broken stream may live: the scheduler knows. Of a worker that does not name
        its process nobody will say more.
        """
        sure = [each for each in state.deaths if each.is_told or not each.process_id]
        return sum(each.was_alone for each in sure) >= self._most

    def _count(self, states: Sequence[OpenRequest], death: Death) -> list[OpenRequest]:
        guilty = []
        self._died[death[:2]] = None
        if len(self._died) > _MOST_DEATHS:
            del self._died[next(iter(self._died))]
        for state in states:
            forgive(state)
            if _has_counted(state, death):
                continue
            state.deaths.append(death)
            if len(state.deaths) < self._most:
                continue
            if state.request_id == self._on_trial or self._is_proven(state):
                guilty.append(state)
            else:
                self._waiting[state.request_id] = None
        return guilty

    def detached(
        self, worker_id: str, process_id: str, had: Sequence[OpenRequest]
    ) -> list[OpenRequest]:
        """Count a worker's death, its stream broken, for all that it had; return the cause.

        These are ``had``, and those that the scheduler called lost while the stream was open. Who
        was placed there again has seen one death, whatever the scheduler still says.
        """
        self._heard_at.pop(worker_id, None)
        candidates = (self._requests.find(name) for name in self._unsure.pop(worker_id, {}))
        lost = [
            state for state in dict.fromkeys(candidates) if state is not None and state not in had
        ]
        back = [state for state in lost if state.worker_id == worker_id]
        elsewhere = [state for state in lost if state.worker_id != worker_id]
        death = Death(worker_id, process_id, len(had) + len(lost) == 1, is_told=False)
        guilty = self._count(elsewhere, death._replace(is_told=True))
        return guilty + self._count([*had, *back], death)

    def has_lived_with(self, state: OpenRequest) -> bool:
        """Return whether its worker has sent a batch since the request was placed there."""
        return self._heard_at.get(state.worker_id, -inf) >= state.placed_at

    def heard(self, worker_id: str, now: float) -> None:
        """Note that a worker sends tokens: it lives."""
        self._heard_at[worker_id] = now
        self._unsure.pop(worker_id, None)

    def lives(self, worker_id: str, process_id: str) -> None:
        """Take back the deaths of a worker's process; not of others that had its name."""
        if (process := (worker_id, process_id)) in self._died:
            del self._died[process]
            for state in self._requests:
                state.deaths = [each for each in state.deaths if each[:2] != process]
        unsure = self._unsure.get(worker_id, {})
        for request_id in [name for name, lost in unsure.items() if lost == process_id]:
            del unsure[request_id]

    def may_run(self, state: OpenRequest) -> bool:
        """Return whether it may be tried again now, and not after other suspects."""
        return state.request_id not in self._waiting

    def next(self) -> OpenRequest | None:
        """Return the suspect whose turn has come, once the one before has ended or progressed."""
        if not self._waiting and not self._on_trial:
            return None
        tried = self._requests.find(self._on_trial)
        if tried is not None and len(tried.output) - tried.num_tokens_before < PROGRESS:
            return None
        self._on_trial = ""
        while self._waiting:
            request_id = next(iter(self._waiting))
            del self._waiting[request_id]
            state = self._requests.find(request_id)
            if state is not None:
                self._on_trial = request_id
                return state
        return None


def _has_counted(state: OpenRequest, death: Death) -> bool:
    """Return whether a death is one that the request has seen: a named process dies once.

    Of a worker that does not name its process, a broken stream and the next word are one death.
    """
    if death.process_id:
        return any(each.process_id == death.process_id for each in state.deaths)
    if death.is_told and state.deaths[-1:] == [death._replace(is_told=False)]:
        state.deaths[-1] = death
        return True
    return False
