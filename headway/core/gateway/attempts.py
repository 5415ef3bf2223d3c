"""Further attempts at a request: how many it has, and requests that may kill their workers.

An attempt that makes progress is not held against its request. A request whose worker has died
twice before it made progress is suspected to be the cause:

- If it was this gateway's only request on both workers, and both have surely died, it gets no
  further attempt. It waits until that is known.
- Otherwise it gets one more when no other suspect runs. If its worker dies again, it was the cause.

A death shows as a broken token stream and as the scheduler's word, which count once. A worker that
opens its token stream again, or goes on sending tokens, has not died, nor has one whose process the
scheduler reaches again: a process that is cut off has a few seconds for that. It has surely died
once they have passed, and the scheduler has lost it, too. Nor has a worker died of a request that
it never took: one that was dead before is noticed later. A broken stream tells so only of a worker
that has sent something since the request was placed there; for the others the scheduler knows
whether their worker had taken them.
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
    if _has_progressed(state):
        state.num_tries = 0
        state.deaths.clear()
    state.num_tokens_before = len(state.output)


def _has_progressed(state: OpenRequest) -> bool:
    return len(state.output) - state.num_tokens_before >= PROGRESS


class Suspects:
    """The requests whose workers have died ``most`` times; one of them runs at a time.

    A process that is cut off may be reached again for ``patience`` seconds.
    """

    def __init__(self, requests: OpenRequests, most: int, patience: float) -> None:
        self._requests = requests
        self._most = most
        self._patience = patience
        self._waiting: dict[str, None] = {}
        self._on_trial = ""
        self._verdicts: dict[str, float] = {}
        """By request that may be proven the cause: the instant at which its deaths are weighed."""
        self._cleared: list[OpenRequest] = []
        """Requests that waited, and are suspected no longer."""
        self._heard_at: dict[str, float] = {}
        """By worker with an open token stream: the instant of its newest batch."""
        self._unsure: dict[str, dict[str, str]] = {}
        """By worker that the scheduler has lost, but whose stream is still open: what it had.

        These are requests, each with the process that the scheduler has lost.
        """
        self._died: dict[str, bool] = {}
        """Processes whose deaths were counted or told, the newest last; True: the scheduler said
        so. One that is not named goes by its worker's name."""

    @property
    def next_at(self) -> float | None:
        """The next instant at which deaths are weighed."""
        return min(self._verdicts.values(), default=None)

    def lost(
        self, states: Sequence[OpenRequest], worker_id: str, process_id: str, now: float
    ) -> None:
        """Count a death that the scheduler tells for all that had the worker."""
        # others that were told of it before had company there, and so has this one
        was_alone = len(states) == 1 and process_id not in self._died
        if process_id:
            self._told(process_id, states, now)
        if not states:
            return
        worker_id = worker_id or states[0].worker_id
        if worker_id in self._heard_at:
            unsure = self._unsure.setdefault(worker_id, {})
            unsure.update((state.request_id, process_id) for state in states)
            return
        self._count(states, Death(worker_id, process_id, was_alone, is_told=True), now)

    def _told(self, process_id: str, had: Sequence[OpenRequest], now: float) -> None:
        """Note that the scheduler, too, has lost a process, which had these, too."""
        was_counted = process_id in self._died
        self._note(process_id, is_told=True)
        if not was_counted:
            return
        for state in self._requests:
            for place, death in enumerate(state.deaths):
                if death.process_id == process_id:
                    was_alone = death.was_alone and all(each is state for each in had)
                    state.deaths[place] = death._replace(is_told=True, was_alone=was_alone)
                    self._suspect(state, now)

    def _note(self, process: str, *, is_told: bool) -> None:
        self._died[process] = self._died.pop(process, False) or is_told
        if len(self._died) > _MOST_DEATHS:
            del self._died[next(iter(self._died))]

    def _count(self, states: Sequence[OpenRequest], death: Death, now: float) -> None:
        if not states:
            return
        self._note(death.process, is_told=death.is_told)
        if death.process_id:
            death = death._replace(is_told=self._died[death.process])
        for state in states:
            forgive(state)
            if not _has_counted(state, death):
                state.deaths.append(death)
                if len(state.deaths) >= self._most:
                    self._waiting[state.request_id] = None
            self._suspect(state, now)

    def _suspect(self, state: OpenRequest, now: float) -> None:
        """Weigh its deaths, if they may prove it the cause, once they can be taken back no more."""
        if self._is_cause(state.deaths):
            self._verdicts[state.request_id] = now + self._patience

    def _is_cause(self, deaths: Sequence[Death]) -> bool:
        """Return whether it was alone at so many deaths, or had one more when it was tried."""
        return sum(each.was_alone for each in deaths) >= self._most or len(deaths) > self._most

    def judge(self, now: float) -> list[OpenRequest]:
        """Return those that are proven the cause now; the others may run.

        The process of a broken stream may live: the scheduler knows. Of a worker that does not name
        its process nobody will say more.
        """
        guilty = []
        for request_id in [name for name, at in self._verdicts.items() if at <= now]:
            del self._verdicts[request_id]
            state = self._requests.find(request_id)
            if state is not None and not _has_progressed(state):
                sure = [each for each in state.deaths if each.is_told or not each.process_id]
                if self._is_cause(sure):
                    state.deaths = sure
                    guilty.append(state)
        return guilty

    def detached(
        self,
        worker_id: str,
        process_id: str,
        had: Sequence[OpenRequest],
        others: Sequence[OpenRequest],
        now: float,
    ) -> None:
        """Count a worker's death, its stream broken, for all that it had.

        These are ``had``, and those that the scheduler called lost while the stream was open. Who
        was placed there again has seen one death, whatever the scheduler still says. Of ``others``
        it is not known.
        """
        self._heard_at.pop(worker_id, None)
        unsure = self._unsure.pop(worker_id, {})
        candidates = (self._requests.find(request_id) for request_id in unsure)
        lost = [state for state in candidates if state is not None and state not in had]
        was_alone = len({*had, *lost, *others}) == 1
        death = Death(worker_id, process_id, was_alone, is_told=False)
        self._count([*had, *(each for each in lost if each.worker_id == worker_id)], death, now)
        for state in lost:
            if state.worker_id != worker_id:
                process_id = unsure[state.request_id] or death.process_id
                confirmed = death._replace(process_id=process_id, is_told=True)
                self._count([state], confirmed, now)

    def has_lived_with(self, state: OpenRequest) -> bool:
        """Return whether its worker has sent a batch since the request was placed there."""
        return self._heard_at.get(state.worker_id, -inf) >= state.placed_at

    def heard(self, worker_id: str, now: float) -> None:
        """Note that a worker sends tokens: it lives."""
        self._heard_at[worker_id] = now
        self._unsure.pop(worker_id, None)

    def lives(self, worker_id: str, process_id: str) -> None:
        """Take back the deaths of a worker's process; not of others that had its name."""
        if self._died.pop(process := process_id or worker_id, None) is not None:
            for state in self._requests:
                if any(each.process == process for each in state.deaths):
                    state.deaths = [each for each in state.deaths if each.process != process]
                    self._clear(state)
        unsure = self._unsure.get(worker_id, {})
        for request_id in [name for name, lost in unsure.items() if lost == process_id]:
            del unsure[request_id]

    def _clear(self, state: OpenRequest) -> None:
        """Let it run, if too few deaths are left to suspect it."""
        if len(state.deaths) < self._most:
            self._verdicts.pop(state.request_id, None)
            if state.request_id in self._waiting:
                del self._waiting[state.request_id]
                self._cleared.append(state)

    def may_run(self, state: OpenRequest) -> bool:
        """Return whether it may be tried again now, and not after other suspects."""
        return state.request_id not in self._waiting

    def next(self) -> OpenRequest | None:
        """Return one that waits no longer: it is no suspect any more, or its turn has come.

        A turn ends once its request has ended, made progress, or lost its worker again.
        """
        if self._cleared:
            return self._cleared.pop()
        if not self._waiting and not self._on_trial:
            return None
        tried = self._requests.find(self._on_trial)
        if tried is not None and self.may_run(tried) and not self._is_over(tried):
            return None
        self._on_trial = ""
        for request_id in [name for name in self._waiting if name not in self._verdicts]:
            del self._waiting[request_id]
            state = self._requests.find(request_id)
            if state is not None:
                self._on_trial = request_id
                return state
        return None

    def _is_over(self, tried: OpenRequest) -> bool:
        return len(tried.deaths) < self._most or _has_progressed(tried)


def _has_counted(state: OpenRequest, death: Death) -> bool:
    """Return whether a death is one that the request has seen: a process dies once."""
    for place, each in enumerate(state.deaths):
        if each.is_told_by(death):
            process_id = each.process_id or death.process_id
            is_told = each.is_told or death.is_told
            state.deaths[place] = each._replace(process_id=process_id, is_told=is_told)
            return True
    return False
