"""The gateway's decisions: admission, further attempts, and the order of tokens.

Every client sees each token of its request once and in order, whatever fails behind the gateway.
What may happen to a stream is in ``streams.py``; here is which event makes it happen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from headway.core.gateway.admission import FirstTokenPace, refusal
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    GatewayEvent,
    Release,
    SchedulerConnected,
    SchedulerDisconnected,
    Submit,
    WorkerBack,
    WorkerDetached,
    WorkersMissing,
)
from headway.core.gateway.lives import Lives
from headway.core.gateway.order import Intake
from headway.core.gateway.pacing import Pacers
from headway.core.gateway.sessions import Sessions
from headway.core.gateway.settings import GatewaySettings
from headway.core.gateway.state import OpenRequest, StreamStage
from headway.core.gateway.streams import Streams
from headway.core.reasoning import Markers
from headway.errors import Code, HeadwayError
from headway.life.moments import MomentKind
from headway.messages import Lost, Placed, Rejected, StreamFailure, TokenBatch, WorkerReached
from headway.policies import registry
from headway.policies.burst import Burst
from headway.request import FinishReason, Request

_BROKEN = "the token stream of its worker {} broke"
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
        self.lives = Lives(settings.num_lives)
        self.sessions = Sessions(settings.session_idle, settings.num_sessions)
        self._gateway_id = gateway_id
        self._address = address
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
        draw = draw_stream_id or itertools.count(1).__next__
        self.streams = Streams(gateway_id, settings, draw, self.pacers, self.lives, self.sessions)

    @property
    def next_wakeup(self) -> float | None:
        """Instant of the next deadline, resubmission, timeout or due token."""
        instants = (self.streams.next_at, self.pacers.next_at)
        return min((at for at in instants if at is not None), default=None)

    @property
    def num_open(self) -> int:
        """Number of requests that have not ended."""
        return len(self.streams.requests)

    @property
    def num_waiting(self) -> int:
        """Number of open requests without a token so far."""
        return self.streams.num_waiting

    @property
    def retry_after(self) -> float:
        """Seconds until those who wait now should have their first token."""
        return self._pace.time_for(self.num_waiting)

    def handle(self, event: GatewayEvent, *, now: float) -> Sequence[GatewayAction]:
        """React to one event."""
        match event:
            case TokenBatch():
                self.streams.suspects.heard(event.worker_id, now)
                self._on_tokens(event, now)
            case Submit():
                self._on_submit(event, now)
            case Release(request_id):
                self._on_release(request_id, now)
            case WorkerDetached():
                self._on_detached(event, now)
            case WorkerBack(worker_id, process_id) | WorkerReached(worker_id, process_id):
                self.streams.suspects.lives(worker_id, process_id)
            case SchedulerConnected():
                self.streams.connect(now)
            case SchedulerDisconnected():
                self.streams.disconnect(now)
            case WorkersMissing(reasons):
                self.streams.lack(reasons, now)
            case Placed():
                self._on_placed(event, now)
            case Rejected():
                self._on_rejected(event, now)
            case Lost():
                self._on_lost(event, now)
        return self._acted(now)

    def wake(self, *, now: float) -> Sequence[GatewayAction]:
        """End requests past their deadline; go on with those whose stage has lasted long enough."""
        self.streams.deliver(self.pacers.release(now=now))
        self.streams.refuse_causes(now)
        for state in self.streams.requests.pop_due(now):
            if state.request.deadline_at <= now:
                self._on_deadline(state, now)
            elif state.due_at <= now:
                self._on_due(state, now)
        return self._acted(now)

    def _acted(self, now: float) -> Sequence[GatewayAction]:
        self.streams.try_next_suspect(now)
        actions, self.streams.actions = self.streams.actions, []
        return actions

    def _on_due(self, state: OpenRequest, now: float) -> None:
        """Do what follows when a stage has lasted long enough."""
        match state.stage:
            case StreamStage.RETRYING:
                self.streams.send(state, now)
            case StreamStage.UNSENT | StreamStage.SENT if not state.output:
                lack = self.streams.lack_of(state.request.model)
                self.streams.fail(state, _no_scheduler() if lack is None else lack.error(now), now)
            case StreamStage.LACKING:
                self.streams.retry(state, f"token {len(state.output)} did not arrive", now)
            case StreamStage.ORPHANED:
                self.streams.retry(state, _BROKEN.format(state.worker_id), now)

    # --- clients ----------------------------------------------------------------------

    def _on_submit(self, event: Submit, now: float) -> None:
        error = refusal(event.request, self.settings, self.num_waiting, self.retry_after)
        error = error or self.streams.unserved(event.request.model, now)
        if error is not None:
            self.streams.actions.append(Fail(event.request.request_id, error))
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
            stream_id=self.streams.new_stream_id(),
            gateway_id=self._gateway_id,
            gateway_address=self._address,
            deadline_at=asked.arrival_at + self._time_for(asked),
            is_read=event.is_read,
            is_burst=is_burst,
        )
        state = OpenRequest(request, may_be_cut=event.may_be_cut)
        state.life = self.lives.came(request, state.output, turn.number, now=now)
        self.sessions.began(state)
        if event.is_read:
            self.pacers.open(request)
        self.streams.open(state, now)

    def _on_release(self, request_id: str, now: float) -> None:
        state = self.streams.requests.find(request_id)
        if state is not None:
            self.streams.release(state, now)

    def _time_for(self, request: Request) -> float:
        """Return the seconds that a request may take: its class's deadline, or anybody's."""
        service = request.standing.service
        deadline = service.deadline if service is not None else None
        return self.settings.request_timeout if deadline is None else deadline

    def _on_deadline(self, state: OpenRequest, now: float) -> None:
        """End a request with what it has produced, where its client can be told so; or fail it."""
        message = (
            f"the request took over {self._time_for(state.request):g} s, the longest a request "
            f"may take; it had {len(state.output)} output tokens; ask for fewer"
        )
        if state.output and state.may_be_cut:
            self.streams.cut(state, message, now)
        else:
            self.streams.fail(state, HeadwayError(Code.DEADLINE_EXCEEDED, message), now)

    # --- the scheduler ----------------------------------------------------------------

    def _on_placed(self, placed: Placed, now: float) -> None:
        """Take a request's tokens from these workers from now on."""
        worker_id, target_id = placed.worker_id, placed.target_worker_id
        sources = (worker_id, target_id) if target_id else (worker_id,)
        for state in self.streams.attempted(placed.key):
            state.decision = f"{placed.reason or 'adopted'}; unit={worker_id}/{placed.unit}"
            if state.life is not None:
                state.life.note(MomentKind.PLACED, now, worker_id, cause=placed.reason)
                state.life.chosen(target_id or worker_id, placed.waited_us, now)
            self.streams.place(state, sources, now)
            intake = Intake(self.streams, now)
            intake.take_held(state)
            self._took(intake, now)

    def _on_rejected(self, rejected: Rejected, now: float) -> None:
        code, message = rejected.code, rejected.message
        for state in self.streams.attempted(rejected.key):
            if state.output and code in _RETRIABLE:  # its client is reading already
                self.streams.retry(state, message, now)
            else:
                error = HeadwayError(code, message, retry_after=rejected.retry_after)
                self.streams.fail(state, error, now, is_refused=True)

    def _on_lost(self, lost: Lost, now: float) -> None:
        had = self.streams.attempted(*lost.keys)
        if lost.died:
            self.streams.suspects.lost(had, lost.worker_id, lost.process_id, now)
        for state in had:
            self.streams.retry(state, lost.reason, now)

    # --- the workers ------------------------------------------------------------------

    def _on_tokens(self, batch: TokenBatch, now: float) -> None:
        intake = Intake(self.streams, now)
        intake.take(batch)
        self._took(intake, now)
        if intake.unknown and batch.worker_id in self.streams.named:  # others learn nothing
            self.streams.actions.append(CancelTokens(batch.worker_id, tuple(intake.unknown)))

    def _took(self, intake: Intake, now: float) -> None:
        if intake.pauses:
            self.streams.actions.append(Deliver((), intake.pauses))
        if intake.num_first:
            self.streams.num_waiting -= intake.num_first
            self._pace.record(intake.num_first, now)
        self.streams.deliver(self.pacers.pass_on(intake.deliveries, now=now))
        for request_id, reason in intake.broken.items():
            broken = self.streams.requests.find(request_id)
            if broken is not None:  # another copy may have completed it in the same batch
                self.streams.retry(broken, reason, now)
        for failure in intake.failures:
            self._on_failure(failure, now)

    def _on_failure(self, failure: StreamFailure, now: float) -> None:
        state = self.streams.requests.by_stream.get(failure.stream_id)
        if state is None:
            return
        if failure.finish_reason is FinishReason.ERROR and failure.code not in _RETRIABLE:
            state.num_failures += 1
        is_refused = failure.code is Code.INVALID_ARGUMENT
        if is_refused or state.num_failures >= self.settings.max_failures:
            code = failure.code if is_refused else Code.INTERNAL
            self.streams.fail(state, HeadwayError(code, failure.message), now)
        else:
            self.streams.retry(state, failure.message, now)

    def _on_detached(self, event: WorkerDetached, now: float) -> None:
        """Try the requests of a broken token stream again; leave some to the scheduler's word.

        These are the ones that the worker has sent nothing since: it may have been dead already
        when they were placed there, and the scheduler knows whether it had taken them.
        """
        worker_id, suspects = event.worker_id, self.streams.suspects
        had: list[OpenRequest] = []
        others: list[OpenRequest] = []
        for state in self.streams.requests:
            if state.worker_id != worker_id:
                continue
            if not self.streams.is_connected or suspects.has_lived_with(state):
                had.append(state)
            else:
                self.streams.orphan(state, now)
                others.append(state)
        suspects.detached(worker_id, event.process_id, had, others, now)
        for state in had:
            self.streams.retry(state, _BROKEN.format(worker_id), now)


def _no_scheduler() -> HeadwayError:
    message = "no scheduler could be reached; try again soon"
    return HeadwayError(Code.UNAVAILABLE, message, retry_after=1.0)
