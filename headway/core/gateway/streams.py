"""The streams of open requests: what may happen to one, and what the gateway then does.

``TRANSITIONS`` lists every step from stage to stage, and no other file takes one. A stream begins
as NEW. It ends at any stage: complete, refused, failed, at its deadline, or when its client leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import NamedTuple

from headway.core.gateway.attempts import Suspects, forgive
from headway.core.gateway.events import CancelTokens, Deliver, Delivery, Fail, GatewayAction
from headway.core.gateway.lives import Lives
from headway.core.gateway.pacing import Pacers
from headway.core.gateway.sessions import Sessions
from headway.core.gateway.settings import GatewaySettings
from headway.core.gateway.state import OpenRequest, OpenRequests, StreamStage
from headway.errors import Code, HeadwayError
from headway.life.moments import MomentKind
from headway.messages import CancelStream
from headway.request import FinishReason, StreamKey


class StreamEvent(Enum):
    """An event that may change the stage of a stream."""

    SENT = "it goes to the scheduler, or to a new leader"
    KEPT = "it should go to the scheduler, and none is connected"
    LEFT = "its scheduler is gone, and has not said where it runs"
    UNSERVED = "workers that could serve it are missing, or are there again"
    PLACED = "the scheduler names another worker for it"
    OVERTAKEN = "a token comes before its predecessor"
    CAUGHT_UP = "the missing tokens have come"
    BROKE = "its worker's token stream breaks, and has brought nothing since it was placed there"
    CONTINUES = "its next token comes from a worker that has it"
    FAILED = "its attempt has failed, and may be followed by another"
    SUSPECTED = "its attempt has failed, and it may be what kills its workers"
    ALLOWED = "no other suspect runs"


_MOST_NAMED = 4096
_DUE = (StreamStage.NEW, StreamStage.RETRYING)
_ATTEMPTED = (StreamStage.SENT, StreamStage.RUNNING, StreamStage.LACKING, StreamStage.ORPHANED)

TRANSITIONS: Mapping[tuple[StreamStage, StreamEvent], StreamStage] = {
    **{(stage, StreamEvent.SENT): StreamStage.SENT for stage in (*_DUE, StreamStage.UNSENT)},
    **{(stage, StreamEvent.KEPT): StreamStage.UNSENT for stage in _DUE},
    (StreamStage.SENT, StreamEvent.LEFT): StreamStage.SENT,
    (StreamStage.SENT, StreamEvent.UNSERVED): StreamStage.SENT,
    (StreamStage.SENT, StreamEvent.PLACED): StreamStage.RUNNING,
    (StreamStage.RUNNING, StreamEvent.PLACED): StreamStage.RUNNING,
    (StreamStage.RUNNING, StreamEvent.OVERTAKEN): StreamStage.LACKING,
    (StreamStage.LACKING, StreamEvent.PLACED): StreamStage.LACKING,
    (StreamStage.LACKING, StreamEvent.CAUGHT_UP): StreamStage.RUNNING,
    (StreamStage.ORPHANED, StreamEvent.PLACED): StreamStage.RUNNING,
    (StreamStage.ORPHANED, StreamEvent.CONTINUES): StreamStage.RUNNING,
    (StreamStage.SUSPECTED, StreamEvent.ALLOWED): StreamStage.RETRYING,
    **{(stage, StreamEvent.SENT): stage for stage in _ATTEMPTED},  # to the next leader
    **{(stage, StreamEvent.BROKE): StreamStage.ORPHANED for stage in _ATTEMPTED[1:]},
    **{(stage, StreamEvent.FAILED): StreamStage.RETRYING for stage in _ATTEMPTED},
    **{(stage, StreamEvent.SUSPECTED): StreamStage.SUSPECTED for stage in _ATTEMPTED},
}


class Lack(NamedTuple):
    """Why a model cannot be served, and since when."""

    reason: str
    since: float

    def error(self, now: float) -> HeadwayError:
        """Return the refusal of its requests."""
        text = f"{self.reason}, for {max(0.0, now - self.since):.0f} s; try again soon"
        return HeadwayError(Code.UNAVAILABLE, text, retry_after=1.0)


class Streams:
    """The only writer of stages; ``actions`` collects what follows from the current event."""

    def __init__(
        self,
        gateway_id: str,
        settings: GatewaySettings,
        draw_stream_id: Callable[[], int],
        pacers: Pacers,
        lives: Lives,
        sessions: Sessions,
    ) -> None:
        self.requests = OpenRequests()
        self.suspects = Suspects(self.requests, settings.max_deaths, settings.death_patience)
        self.actions: list[GatewayAction] = []
        self.is_connected = False  # to a scheduler leader
        self._lacks: Mapping[str, Lack] = {}  # by model, "" for all
        self.num_waiting = 0  # open requests without a token so far
        self.num_resubmitted = 0
        self.named: dict[str, None] = {}  # workers, the newest last; others learn nothing
        self._gateway_id, self._settings = gateway_id, settings
        self._draw_stream_id = draw_stream_id
        self._pacers, self._lives, self._sessions = pacers, lives, sessions

    def _advance(self, state: OpenRequest, event: StreamEvent, due_at: float | None = None) -> None:
        """Go to the next stage, which needs attention at ``due_at``; None: as before, or never."""
        after = TRANSITIONS.get((state.stage, event))
        assert after is not None, f"{event.name} cannot happen to one that is {state.stage.name}"
        if due_at is not None:
            state.due_at = due_at
            if due_at < inf:
                self.requests.wake_at(due_at, state)
        elif after is not state.stage:
            state.due_at = inf
        state.stage = after

    @property
    def next_at(self) -> float | None:
        """The earliest instant at which a stream needs attention."""
        instants = (self.requests.next_at, self.suspects.next_at)
        return min((at for at in instants if at is not None), default=None)

    # --- to the scheduler -------------------------------------------------------------

    def open(self, state: OpenRequest, now: float) -> None:
        """Begin a stream."""
        self.requests.add(state)
        self.num_waiting += 1
        self.requests.wake_at(state.request.deadline_at, state)
        self.send(state, now)

    def attempted(self, *keys: StreamKey) -> list[OpenRequest]:
        """Return those whose current attempt the scheduler may know by these keys."""
        states = (self.requests.by_stream.get(key.stream_id) for key in dict.fromkeys(keys))
        return [state for state in states if state is not None and state.stage in _ATTEMPTED]

    def send(self, state: OpenRequest, now: float) -> None:
        """Hand it to the scheduler, at once or when the next one is connected."""
        if not self.is_connected:
            self._advance(state, StreamEvent.KEPT, now + self._settings.scheduler_patience)
            return
        is_new = state.stage not in _ATTEMPTED[1:]
        self._advance(state, StreamEvent.SENT, self._patience_with(state) if is_new else None)
        state.request = state.current()
        if state.life is not None:
            state.life.note(MomentKind.SENT, now)
        self.actions.append(state.request)

    def connect(self, now: float) -> None:
        """Send all to a new leader, but those whose next attempt has to wait."""
        self.is_connected = True
        for state in self.requests:
            if state.stage is not StreamStage.RETRYING and state.stage is not StreamStage.SUSPECTED:
                self.send(state, now)

    def disconnect(self, now: float) -> None:
        """Wait for another leader; those that nobody has placed wait no longer than new ones."""
        self.is_connected = False
        for state in self.requests:
            if state.stage is StreamStage.SENT:
                self._advance(state, StreamEvent.LEFT, now + self._settings.scheduler_patience)

    # --- without workers --------------------------------------------------------------

    def lack(self, reasons: Mapping[str, str], now: float) -> None:
        """Take why models cannot be served; those that nobody has placed wait so long for it."""
        before = self._lacks
        self._lacks = {
            model: Lack(reason, before[model].since if model in before else now)
            for model, reason in reasons.items()
        }
        for state in self.requests:
            if state.stage is StreamStage.SENT and self.is_connected:
                self._advance(state, StreamEvent.UNSERVED, self._patience_with(state))

    def lack_of(self, model: str) -> Lack | None:
        """Return why a model cannot be served, None if it can or no scheduler is connected."""
        return (self._lacks.get(model) or self._lacks.get("")) if self.is_connected else None

    def unserved(self, model: str, now: float) -> HeadwayError | None:
        """Return why no request of a model is taken any more, or None.

        That workers are missing is the store's word, which may know less than the scheduler does.
        So another request has to stand still: its prompt was computed, and nobody goes on with it.
        """
        lack, before = self.lack_of(model), now - self._settings.worker_patience
        if lack is None or lack.since > before:
            return None
        stands_still = any(
            state.output and state.last_at <= before and state.request.model == model
            for state in self.requests
        )
        return lack.error(now) if stands_still else None

    def _patience_with(self, state: OpenRequest) -> float:
        """Return until when it waits for workers. Who reads already waits until its deadline."""
        lack = self.lack_of(state.request.model)
        if lack is None or state.output:
            return inf
        return max(lack.since, state.request.arrival_at) + self._settings.worker_patience

    # --- on workers -------------------------------------------------------------------

    def place(self, state: OpenRequest, sources: tuple[str, ...], now: float) -> None:
        """Take its tokens from these workers from now on; the first one has it."""
        for worker_id in sources:
            self.named.pop(worker_id, None)
            self.named[worker_id] = None
        while len(self.named) > _MOST_NAMED:
            del self.named[next(iter(self.named))]
        if sources != state.sources:
            state.former = state.former.union(state.sources).difference(sources)
            state.sources = sources
        if state.source_id not in sources and state.worker_id != sources[0]:
            state.worker_id, state.placed_at = sources[0], now
            self._advance(state, StreamEvent.PLACED)
            self.settle(state, now)

    def settle(self, state: OpenRequest, now: float, *, continues: bool = False) -> None:
        """Take the step that its tokens call for; ``continues``: the next one came in order."""
        if continues and state.stage is StreamStage.ORPHANED:
            self._advance(state, StreamEvent.CONTINUES)
        if state.early and state.stage is StreamStage.RUNNING:
            self._advance(state, StreamEvent.OVERTAKEN, now + self._settings.gap_patience)
        elif not state.early and state.stage is StreamStage.LACKING:
            self._advance(state, StreamEvent.CAUGHT_UP)

    def orphan(self, state: OpenRequest, now: float) -> None:
        """Wait for the scheduler's word on its worker, whose token stream broke."""
        due_at = min(state.due_at, now + self._settings.gap_patience)  # a gap may end it sooner
        self._advance(state, StreamEvent.BROKE, due_at)

    # --- another attempt --------------------------------------------------------------

    def retry(self, state: OpenRequest, reason: str, now: float) -> None:
        """Start a new attempt after the tokens so far, unless there were too many attempts."""
        forgive(state)
        state.num_tries += 1
        state.last_loss = reason
        most, longest = self._settings.max_attempts, self._settings.longest_backoff
        if state.num_tries >= most:
            text = f"the request failed {most} times, the most allowed; the last time: {reason}"
            self.fail(state, HeadwayError(Code.UNAVAILABLE, text, retry_after=longest), now)
            return
        self.num_resubmitted += 1
        if state.life is not None:
            state.life.note(MomentKind.LOST, now, state.worker_id, cause=reason)
        self._cancel(state)
        self.requests.rename(state, self.new_stream_id())
        if self.suspects.may_run(state):
            backoff = self._settings.first_backoff * 2.0 ** (state.num_tries - 1)
            self._advance(state, StreamEvent.FAILED, now + min(backoff, longest))
        else:
            self._advance(state, StreamEvent.SUSPECTED)

    def refuse_causes(self, now: float) -> None:
        """Try those no more that seem to have killed their workers."""
        for state in self.suspects.judge(now):
            text = (
                f"the workers that ran this request died {len(state.deaths)} times, and other "
                "requests are not the cause: it is not tried again; the last time: "
                f"{state.last_loss}"
            )
            self.fail(state, HeadwayError(Code.INTERNAL, text), now)

    def try_next_suspect(self, now: float) -> None:
        """Let the next suspect run, once the one before has ended or progressed."""
        while (state := self.suspects.next()) is not None:
            if state.stage is StreamStage.SUSPECTED:
                self._advance(state, StreamEvent.ALLOWED, now + self._settings.first_backoff)

    def new_stream_id(self) -> int:
        """Draw an id that no open stream has."""
        stream_id = self._draw_stream_id()
        while stream_id in self.requests.by_stream:
            stream_id = self._draw_stream_id()
        return stream_id

    # --- the end ----------------------------------------------------------------------

    def end(self, state: OpenRequest, now: float, status: str, error: str = "") -> None:
        """End a stream; its tokens are delivered, or nobody wants them."""
        self.requests.remove(state)
        self._sessions.ended(state, now=now)
        self._lives.ended(state.request_id, now, status, error)
        if not state.output:
            self.num_waiting -= 1

    def release(self, state: OpenRequest, now: float) -> None:
        """End it for a client that wants no more of it; its work is cancelled."""
        self._pacers.end(state.request_id)
        self.end(state, now, FinishReason.CANCELLED.value)
        self._cancel(state)

    def cut(self, state: OpenRequest, message: str, now: float) -> None:
        """End it at its deadline with what it has."""
        end = Delivery(state.request_id, None, None, FinishReason.LENGTH, is_cut=True)
        self.deliver([*self._pacers.end(state.request_id), end])
        self.end(state, now, Code.DEADLINE_EXCEEDED.value, message)
        self._cancel(state)

    def fail(
        self, state: OpenRequest, error: HeadwayError, now: float, *, is_refused: bool = False
    ) -> None:
        """End it with an error; ``is_refused``: the scheduler has it no more."""
        self.deliver(self._pacers.end(state.request_id))
        self.end(state, now, error.code.value, error.message)
        if not is_refused:
            self._cancel(state)
        self.actions.append(Fail(state.request_id, error))

    def _cancel(self, state: OpenRequest) -> None:
        """Cancel the current attempt everywhere; a cancel of an unknown one does nothing."""
        if state.worker_id:
            self.actions.append(CancelTokens(state.worker_id, (state.stream_id,)))
        if self.is_connected:
            self.actions.append(CancelStream(StreamKey(self._gateway_id, state.stream_id)))

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send tokens to their clients."""
        if deliveries:
            self.actions.append(Deliver(deliveries))
