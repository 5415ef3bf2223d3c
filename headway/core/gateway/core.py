"""The gateway's decisions: admission, resubmission, and the order of tokens.

Every client sees each token of its request once and in order, whatever fails behind the gateway.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from headway.core.gateway.admission import FirstTokenPace, refusal
from headway.core.gateway.attempts import (
    Suspects,
    backoff,
    forgive,
    too_many_attempts,
    too_many_deaths,
)
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Delivery,
    Fail,
    GatewayAction,
    GatewayEvent,
    Release,
    SchedulerConnected,
    SchedulerDisconnected,
    Submit,
    WorkerBack,
    WorkerDetached,
)
from headway.core.gateway.lives import Lives
from headway.core.gateway.order import NamedWorkers, Taken, name_sources, take_tokens
from headway.core.gateway.pacing import Pacers
from headway.core.gateway.sessions import Sessions
from headway.core.gateway.settings import GatewaySettings
from headway.core.gateway.state import OpenRequest, OpenRequests, Timers
from headway.core.reasoning import Markers
from headway.errors import Code, HeadwayError
from headway.life.moments import MomentKind
from headway.messages import (
    CancelStream,
    Lost,
    Placed,
    Rejected,
    StreamFailure,
    ToGateway,
    TokenBatch,
)
from headway.policies import registry
from headway.policies.burst import Burst
from headway.request import FinishReason, Request, StreamKey

_RETRIABLE = frozenset({Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE})


class GatewayCore:
    """A ``Core[GatewayEvent, GatewayAction]``.

    ``draw_stream_id`` gives 64 bits that nobody can guess: whoever knows a stream's id may bring
    its tokens. By default they count from 1, for virtual time.
    """

    def __init__(
        self,
        gateway_id: str,
        address: str,
        settings: GatewaySettings,
        *,
        draw_stream_id: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings
        self.num_resubmitted = 0
        self.num_waiting = 0  # open requests without a token so far
        self.lives = Lives(settings.num_lives)
        self.sessions = Sessions(settings.session_idle, settings.num_sessions)
        self._gateway_id = gateway_id
        self._address = address
        self._draw_stream_id = draw_stream_id or itertools.count(1).__next__
        self._connected = False
        self._requests = OpenRequests()
        self._workers = NamedWorkers()
        self._timers = Timers(self._requests)
        self._suspects = Suspects(self._requests, settings.max_deaths)
        self._pace = FirstTokenPace()
        self._burst: Burst = registry.make("burst", settings.burst, **settings.burst_params)
        self.num_burst_tokens = 0 if self._burst.labels else None
        """Prompt tokens labelled as burst so far; None if nothing is labelled."""
        pacing = registry.make("pacing", settings.pacing, **settings.pacing_params)
        markers = Markers(settings.end_of_reasoning, settings.start_of_reasoning)
        own = {
            name: Markers(model.end_of_reasoning, model.start_of_reasoning)
            for name, model in settings.models.items()
        }
        self.pacers = Pacers(pacing, markers, self.lives.paced, own)

    @property
    def next_wakeup(self) -> float | None:
        """Instant of the next deadline, resubmission, timeout or due token."""
        timer_at, token_at = self._timers.next_at, self.pacers.next_at
        if timer_at is None or token_at is None:
            return timer_at if token_at is None else token_at
        return min(timer_at, token_at)

    @property
    def num_open(self) -> int:
        """Number of requests that have not ended."""
        return len(self._requests)

    @property
    def open_requests(self) -> OpenRequests:
        """The requests that have not ended, to be looked at."""
        return self._requests

    @property
    def retry_after(self) -> float:
        """Seconds until those who wait now should have their first token."""
        return self._pace.time_for(self.num_waiting)

    def handle(self, event: GatewayEvent, *, now: float) -> Sequence[GatewayAction]:
        """React to one event."""
        actions: list[GatewayAction] = []
        match event:
            case TokenBatch():
                self._suspects.heard(event.worker_id, now)
                self._on_tokens(event, actions, now)
            case Submit():
                self._on_submit(event, actions, now)
            case Release(request_id):
                state = self._requests.find(request_id)
                if state is not None:
                    self._drop(state, actions, now)
            case WorkerDetached(worker_id):
                self._on_detached(worker_id, actions, now)
            case WorkerBack(worker_id):
                self._suspects.lives(worker_id)
            case SchedulerConnected() | SchedulerDisconnected():
                self._on_link(isinstance(event, SchedulerConnected), actions, now)
            case Placed() | Rejected() | Lost():
                self._on_scheduler(event, actions, now)
        self._try_next_suspect(now)
        return actions

    def wake(self, *, now: float) -> Sequence[GatewayAction]:
        """End requests past their deadline; resubmit those whose delay has passed."""
        actions: list[GatewayAction] = []
        self._deliver(self.pacers.release(now=now), actions)
        for state in self._timers.pop_due(now):
            if state.request.deadline_at <= now:
                self._on_deadline(state, actions, now)
            elif state.retry_at is not None and state.retry_at <= now:
                state.retry_at = None
                self._submit(state, actions, now)
            elif not state.output and _is_over(
                state.unsent_since, self.settings.scheduler_patience, now
            ):
                message = "no scheduler could be reached; try again soon"
                error = HeadwayError(Code.UNAVAILABLE, message, retry_after=1.0)
                self._fail(state, error, actions, now)
            elif _is_over(state.gap_since, self.settings.gap_patience, now):
                state.gap_since = None
                if state.early:
                    reason = f"token {len(state.output)} did not arrive"
                    self._try_again(state, actions, now, reason)
            elif _is_over(state.orphaned_since, self.settings.gap_patience, now):
                self._try_again(state, actions, now, _broken(state.worker_id))
        self._try_next_suspect(now)
        return actions

    # --- clients ----------------------------------------------------------------------

    def _on_submit(self, event: Submit, actions: list[GatewayAction], now: float) -> None:
        error = refusal(event.request, self.settings, self.num_waiting, self.retry_after)
        if error is not None:
            actions.append(Fail(event.request.request_id, error))
            return
        asked = event.request
        num_tokens = len(asked.prompt_token_ids)
        yields = asked.standing.yields  # it makes no burst
        is_burst = not yields and self._burst.arrived(num_tokens, now=now).is_burst
        if is_burst and self.num_burst_tokens is not None:
            self.num_burst_tokens += num_tokens
        turn = self.sessions.came(asked, event.max_turns, now=now)
        request = replace(
            asked,
            ends_session=turn.ends_session,
            stream_id=self._new_stream_id(),
            gateway_id=self._gateway_id,
            gateway_address=self._address,
            deadline_at=asked.arrival_at + self._time_for(asked),
            is_read=event.is_read,
            is_burst=is_burst,
        )
        state = OpenRequest(request, may_be_cut=event.may_be_cut)
        state.life = self.lives.came(request, state.output, turn.number, now=now)
        self.sessions.began(state)
        self._requests.add(state)
        if event.is_read:
            self.pacers.open(
                request.request_id,
                reasons=request.reasons,
                prompt=request.prompt_token_ids,
                tpot=request.standing.service.tpot if request.standing.service else None,
                model=request.model,
            )
        self.num_waiting += 1
        self._timers.add(request.deadline_at, request.request_id)
        self._submit(state, actions, now)

    def _time_for(self, request: Request) -> float:
        """Return the seconds that a request may take: its class's deadline, or anybody's."""
        service = request.standing.service
        deadline = service.deadline if service is not None else None
        return self.settings.request_timeout if deadline is None else deadline

    def _on_deadline(self, state: OpenRequest, actions: list[GatewayAction], now: float) -> None:
        """End a request with what it has produced, where its client can be told so; or fail it."""
        message = (
            f"the request took over {self._time_for(state.request):g} s, the longest a request "
            f"may take; it had {len(state.output)} output tokens; ask for fewer"
        )
        if not (state.output and state.may_be_cut):
            self._fail(state, HeadwayError(Code.DEADLINE_EXCEEDED, message), actions, now)
            return
        end = Delivery(state.request_id, None, None, FinishReason.LENGTH, is_cut=True)
        self.lives.ended(state.request_id, now, Code.DEADLINE_EXCEEDED.value, message)
        self._deliver([*self.pacers.end(state.request_id), end], actions)
        self._drop(state, actions, now)

    def _fail(
        self, state: OpenRequest, error: HeadwayError, actions: list[GatewayAction], now: float
    ) -> None:
        self.lives.ended(state.request_id, now, error.code.value, error.message)
        self._deliver(self.pacers.end(state.request_id), actions)
        self._drop(state, actions, now)
        actions.append(Fail(state.request_id, error))

    def _drop(self, state: OpenRequest, actions: list[GatewayAction], now: float) -> None:
        """Close a request and cancel its work, which frees its KV blocks."""
        self._forget(state, now)
        self._cancel(state, actions)

    def _forget(self, state: OpenRequest, now: float) -> None:
        self._requests.remove(state)
        self.pacers.end(state.request_id)
        self.sessions.ended(state, now=now)
        self.lives.ended(state.request_id, now, FinishReason.CANCELLED.value)
        if not state.output:
            self.num_waiting -= 1

    # --- the scheduler ----------------------------------------------------------------

    def _on_link(self, connected: bool, actions: list[GatewayAction], now: float) -> None:
        self._connected = connected
        if connected:
            for state in self._requests:
                if state.retry_at is None:
                    self._submit(state, actions, now)

    def _on_scheduler(self, event: ToGateway, actions: list[GatewayAction], now: float) -> None:
        if isinstance(event, Lost):
            self._on_lost(event, actions, now)
            return
        state = self._requests.by_stream.get(event.key.stream_id)
        if state is None:
            return  # it has ended or has a newer stream id
        match event:
            case Placed(_, worker_id, target_worker_id=target):
                state.decision = f"{event.reason or 'adopted'}; unit={worker_id}/{event.unit}"
                sources = (worker_id, target) if target else (worker_id,)
                if state.life is not None:
                    state.life.note(MomentKind.PLACED, now, worker_id, cause=event.reason)
                self._name(state, sources, actions, now)
            case Rejected():
                self._on_rejected(state, event, actions, now)

    def _name(
        self,
        state: OpenRequest,
        sources: tuple[str, ...],
        actions: list[GatewayAction],
        now: float,
    ) -> None:
        """Take a request's tokens from these workers from now on."""
        self._workers.add(*sources)
        taken = name_sources(self._requests, state, sources, now)
        if taken is not None:
            self._took(taken, actions, now)

    def _on_rejected(
        self, state: OpenRequest, event: Rejected, actions: list[GatewayAction], now: float
    ) -> None:
        if state.output and event.code in _RETRIABLE:  # its client is reading already
            self._try_again(state, actions, now, event.message)
            return
        self._deliver(self.pacers.end(state.request_id), actions)
        self.lives.ended(state.request_id, now, event.code.value, event.message)
        self._forget(state, now)
        error = HeadwayError(event.code, event.message, retry_after=event.retry_after)
        actions.append(Fail(state.request_id, error))

    def _submit(self, state: OpenRequest, actions: list[GatewayAction], now: float) -> None:
        """Hand a request to the scheduler, at once or when the next one is connected."""
        if self._connected:
            state.unsent_since = None
            state.request = state.current()
            if state.life is not None:
                state.life.note(MomentKind.SENT, now)
            actions.append(state.request)
        elif state.unsent_since is None:
            state.unsent_since = now
            self._timers.add(now + self.settings.scheduler_patience, state.request_id)

    # --- the workers ------------------------------------------------------------------

    def _on_tokens(self, batch: TokenBatch, actions: list[GatewayAction], now: float) -> None:
        taken = take_tokens(self._requests, batch, now)
        self._took(taken, actions, now)
        if taken.unknown and batch.worker_id in self._workers:  # others learn nothing
            actions.append(CancelTokens(batch.worker_id, tuple(taken.unknown)))

    def _took(self, taken: Taken, actions: list[GatewayAction], now: float) -> None:
        if taken.pauses:
            actions.append(Deliver((), taken.pauses))
        if taken.num_first:
            self.num_waiting -= taken.num_first
            self._pace.record(taken.num_first, now)
        for ended, finish in taken.ended:
            self.sessions.ended(ended, now=now)
            self.lives.ended(ended.request_id, now, finish.value)
        self._deliver(self.pacers.pass_on(taken.deliveries, now=now), actions)
        for state in taken.gaps:
            if state.gap_since is None:
                state.gap_since = now
                self._timers.add(now + self.settings.gap_patience, state.request_id)
        for request_id, reason in taken.broken.items():
            broken = self._requests.find(request_id)
            if broken is not None:  # another copy may have completed it in the same batch
                self._try_again(broken, actions, now, reason)
        for failure in taken.failures:
            self._on_failure(failure, actions, now)

    @staticmethod
    def _deliver(deliveries: Sequence[Delivery], actions: list[GatewayAction]) -> None:
        if deliveries:
            actions.append(Deliver(deliveries))

    def _on_failure(self, failure: StreamFailure, actions: list[GatewayAction], now: float) -> None:
        state = self._requests.by_stream.get(failure.stream_id)
        if state is None:
            return
        if failure.finish_reason is FinishReason.ERROR and failure.code not in _RETRIABLE:
            state.num_failures += 1
        is_refused = failure.code is Code.INVALID_ARGUMENT
        if is_refused or state.num_failures >= self.settings.max_failures:
            code = failure.code if is_refused else Code.INTERNAL
            self._fail(state, HeadwayError(code, failure.message), actions, now)
        else:
            self._try_again(state, actions, now, failure.message)

    # --- another attempt --------------------------------------------------------------

    def _on_detached(self, worker_id: str, actions: list[GatewayAction], now: float) -> None:
        """Try the requests of a broken token stream again; leave some to the scheduler's word.

        These are the ones that the worker has sent nothing since: it may have been dead already
        when they were placed there, and the scheduler knows whether it had taken them.
        """
        had = []
        for state in self._requests:
            if state.worker_id != worker_id:
                continue
            if not self._connected or self._suspects.has_lived_with(state):
                had.append(state)
            else:
                state.orphaned_since = now
                self._timers.add(now + self.settings.gap_patience, state.request_id)
        guilty = self._suspects.detached(worker_id, had)
        self._on_death(had, guilty, actions, now, _broken(worker_id))

    def _on_lost(self, lost: Lost, actions: list[GatewayAction], now: float) -> None:
        had = [s for key in lost.keys if (s := self._requests.by_stream.get(key.stream_id))]
        if lost.died:
            self._on_death(had, self._suspects.told(had), actions, now, lost.reason)
            return
        for state in had:
            self._try_again(state, actions, now, lost.reason)

    def _on_death(
        self,
        had: Sequence[OpenRequest],
        guilty: Sequence[OpenRequest],
        actions: list[GatewayAction],
        now: float,
        reason: str,
    ) -> None:
        """Try the requests of a dead worker again, except those that seem to have killed it."""
        for state in guilty:
            self._fail(state, too_many_deaths(state, reason), actions, now)
        for state in had:
            if state not in guilty:
                self._try_again(state, actions, now, reason)

    def _try_next_suspect(self, now: float) -> None:
        state = self._suspects.next()
        if state is not None:
            state.retry_at = now + self.settings.first_backoff
            self._timers.add(state.retry_at, state.request_id)

    def _try_again(
        self, state: OpenRequest, actions: list[GatewayAction], now: float, reason: str
    ) -> None:
        """Start a new attempt after the tokens so far, unless there were too many attempts."""
        settings = self.settings
        forgive(state)
        state.num_tries += 1
        if state.num_tries >= settings.max_attempts:
            error = too_many_attempts(settings.max_attempts, reason, settings.longest_backoff)
            self._fail(state, error, actions, now)
            return
        self.num_resubmitted += 1
        if state.life is not None:
            state.life.note(MomentKind.LOST, now, state.worker_id, cause=reason)
        self._cancel(state, actions)
        may_run = self._suspects.may_run(state)
        retry_at = now + backoff(state.num_tries, settings) if may_run else inf  # until its turn
        self._requests.rename(state, self._new_stream_id(), retry_at)
        if retry_at < inf:
            self._timers.add(retry_at, state.request_id)

    def _cancel(self, state: OpenRequest, actions: list[GatewayAction]) -> None:
        """Cancel the current attempt everywhere; a cancel of an unknown one does nothing."""
        if state.worker_id:
            actions.append(CancelTokens(state.worker_id, (state.stream_id,)))
        if self._connected:
            actions.append(CancelStream(StreamKey(self._gateway_id, state.stream_id)))

    def _new_stream_id(self) -> int:
        stream_id = self._draw_stream_id()
        while stream_id in self._requests.by_stream:
            stream_id = self._draw_stream_id()
        return stream_id


def _broken(worker_id: str) -> str:
    return f"the token stream of its worker {worker_id} broke"


def _is_over(since: float | None, patience: float, now: float) -> bool:
    return since is not None and since + patience <= now
