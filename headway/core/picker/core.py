"""The picker's core: the scheduler's core in front of endpoints that are not Headway's workers.

A gateway asks where a request shall go. The request waits in the scheduler's window until an
endpoint is ready, and is answered with that endpoint and with fallbacks. To the scheduler every
endpoint is a worker of one unit; ``endpoint`` makes up the reports that such a worker would send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from headway.blocks import BlockHash
from headway.cluster import Role
from headway.core.picker.endpoint import EndpointLedger
from headway.core.picker.events import (
    EndpointInfo,
    EndpointListed,
    EndpointMetrics,
    EndpointStatus,
    EndpointUnlisted,
    KvChanged,
    Pick,
    PickAsked,
    PickAskedAtOnce,
    PickEnded,
    PickerAction,
    PickerEvent,
    PickerSettings,
    Refuse,
    Responded,
    Scraped,
    Stepped,
    WhyRefused,
)
from headway.core.picker.health import Health, Level
from headway.core.picker.kv_chains import KvChains
from headway.core.picker.waiting import WaitingClasses
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Decision,
    Elected,
    GatewayConnected,
    Note,
    Persist,
    SchedulerAction,
    SchedulerEvent,
    SendToGateway,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.errors import Code
from headway.messages import (
    CachedPrefixes,
    CancelStream,
    Dispatch,
    EndForward,
    FinishedRequest,
    Handoff,
    HandoffResult,
    HeldRequest,
    Placed,
    Rejected,
    Snapshot,
)
from headway.request import Request, StreamKey

GATEWAY_ID = "picker"
"""The ``gateway_id`` of every request that is asked about."""
BEST_GUESS, AT_ONCE, SPLIT = "best-guess", "at-once", "split"
"""Rules of answers that the scheduler's core did not give."""


@dataclass(slots=True)
class _Known:
    """An endpoint; ``joined``: the scheduler counts it among its workers.

    ``check_at``: instant of the next check of it, -inf once something has happened to it.
    """

    endpoint: EndpointLedger
    health: Health
    chains: KvChains
    joined: bool = False
    check_at: float = -inf


@dataclass(slots=True)
class _Open:
    """A request until it ends; ``at``: the endpoint named first, "" while it waits.

    ``prefiller``: the endpoint that computes its prompt, if another one decodes.
    """

    request: Request
    among: frozenset[str] | None
    at: str = ""
    prefiller: str = ""


class PickerCore:
    """``Core[PickerEvent, PickerAction]``."""

    def __init__(
        self, scheduler: SchedulerSettings | None = None, settings: PickerSettings | None = None
    ) -> None:
        self._settings = settings or PickerSettings()
        self._scheduler = SchedulerCore(scheduler)
        self._known: dict[str, _Known] = {}
        self._open: dict[StreamKey, _Open] = {}
        self._due: dict[StreamKey, float] = {}
        """Instants at which requests have been held for long enough, the first one first."""
        self._waiting = WaitingClasses()
        self._max_waiting = (scheduler or SchedulerSettings()).max_waiting
        self._todo: deque[SchedulerAction] = deque()
        self._actions: list[PickerAction] = []
        self._has_begun = False
        self._check_at = self._rested_at = inf
        """Instants of the next look at an endpoint, and at which one has rested."""

    # --- the protocol of a core -------------------------------------------------------

    @property
    def next_wakeup(self) -> float | None:
        """Instant of the scheduler's next turn, of a prompt's end, or of a request's limit."""
        at = self._scheduler.next_wakeup
        at = inf if at is None else at
        at = min(at, next(iter(self._due.values()), inf))
        is_awaited = self._due or self._check_at == -inf  # else the next event is soon enough
        at = min(at, self._check_at if is_awaited else self._rested_at)
        return at if at < inf else None

    def handle(self, event: PickerEvent, *, now: float) -> Sequence[PickerAction]:
        """React to one event."""
        self._begin(now)
        self._look(now)
        match event:
            case PickAsked():
                self._on_asked(event, now)
            case PickAskedAtOnce(key, among):
                self._on_asked_at_once(key, among, now)
            case Responded():
                self._on_responded(event, now)
            case PickEnded(key):
                self._on_ended(key, now)
            case EndpointListed(info):
                self._on_listed(info, now)
            case EndpointUnlisted(address):
                self._on_unlisted(address, now)
            case Scraped():
                self._on_scraped(event, now)
            case KvChanged():
                self._on_kv_changed(event, now)
            case Stepped():
                self._on_stepped(event, now)
        return self.wake(now=now)

    def wake(self, *, now: float) -> Sequence[PickerAction]:
        """React to the passing of time."""
        self._begin(now)
        self._look(now)
        self._tell(None, now)
        self._answer_overdue(now)
        self._look(now)
        actions, self._actions = self._actions, []
        return actions

    def _look(self, now: float) -> None:
        """Look at the endpoints to which something has happened, or time has done so."""
        if now < self._check_at:
            return
        self._check_at = self._rested_at = inf
        for known in self._known.values():
            if known.check_at <= now:
                known.check_at = inf
                known.health.wake(now=now)
                self._follow(known, now)
                self._report(known, now)
                at = min(known.endpoint.next_wakeup, known.health.next_wakeup)
                known.check_at = min(known.check_at, at)
            self._check_at = min(self._check_at, known.check_at)
            self._rested_at = min(self._rested_at, known.health.next_wakeup)

    def _touch(self, address: str) -> _Known | None:
        """Return an endpoint to which something is about to happen; None for a new one."""
        known, self._check_at = self._known.get(address), -inf
        if known is not None:
            known.check_at = -inf
        return known

    def _begin(self, now: float) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._tell(Elected(1, ()), now)
            self._tell(GatewayConnected(GATEWAY_ID), now)

    # --- requests ---------------------------------------------------------------------

    def _on_asked(self, asked: PickAsked, now: float) -> None:
        request = asked.request
        among = None if asked.among is None else frozenset(asked.among)
        candidates = self._candidates(among, request.model)
        if not candidates:
            self._refuse_none_ready(request.key, now)
            return
        entry = self._open[request.key] = _Open(request, among)
        if not any(self._known[address].joined for address in candidates):
            self._guess(entry, now)  # they are silent: nothing is gained by waiting
            return
        self._make_room(request, now)
        self._due[request.key] = now + self._settings.longest_hold
        self._waiting.add(request)
        self._scheduler.restrict(request.key, self._places_of_prompt(request, among))
        self._tell(request, now)

    # --- prompts apart ----------------------------------------------------------------

    def _places_of_prompt(
        self, request: Request, among: frozenset[str] | None
    ) -> frozenset[str] | None:
        """Return the endpoints that may compute a prompt: None for any.

        It stays whole on decode endpoints where what is not cached of it takes less than
        ``split_from`` seconds. Without one it goes to the prefill endpoints.
        """
        prefillers = self._prefillers(request.model, among)
        if not prefillers:
            return among
        here = self._candidates(among, request.model)
        decoders = [a for a in here if self._known[a].endpoint.info.role is Role.DECODE]
        held = self._scheduler.held_tokens(request, decoders)
        quick = {
            address
            for address, num_held in zip(decoders, held, strict=True)
            if self._known[address].endpoint.prompt_seconds(request.num_tokens - num_held)
            < self._settings.split_from
        }
        return frozenset(quick or (prefillers if decoders else here))

    def _prefillers(self, model: str, among: frozenset[str] | None) -> set[str]:
        return {
            address
            for address, known in self._known.items()
            if known.endpoint.info.role is Role.PREFILL
            and known.joined
            and known.endpoint.info.model == model
            and (among is None or address in among)
        }

    def _is_prefiller(self, address: str) -> bool:
        known = self._known.get(address)
        return known is not None and known.endpoint.info.role is Role.PREFILL

    def _prefills(self, address: str, dispatch: Dispatch, now: float) -> None:
        """Let the scheduler choose at once who decodes: whoever is asked needs both names."""
        endpoint = self._known[address].endpoint
        held: list[HeldRequest] = []
        for request in (each for batch in dispatch.batches for each in batch.requests):
            entry = self._open.get(request.key)
            if entry is not None:
                entry.prefiller = address
                held.append(
                    HeldRequest(request.key, request.request_id, 0, request.num_tokens, True)
                )
        report = EndForward(endpoint.num_passes, 0.0, (), (endpoint.load(),), prefilled=tuple(held))
        self._todo += self._scheduler.handle(WorkerReported(address, report), now=now)

    def _handed_off(self, address: str, handoff: Handoff, now: float) -> None:
        """Name who decodes and who prefills; a request that runs already stays where it is."""
        entry, target = self._open.get(handoff.key), handoff.target_worker_id
        goes = entry is not None and entry.prefiller == address and not entry.at
        if goes and entry is not None:
            allowed = self._candidates(entry.among, entry.request.model)
            named = target if target in allowed else next(iter(self._order(allowed)), "")
            known = self._touch(named)
            if known is None:
                self._guess(entry, now)  # whoever could decode has gone
                return
            known.endpoint.take(entry.request, 0, 0, now=now)
            self._answer(entry, named, SPLIT)
            if named != target:  # the scheduler knows no hints where it places
                self._tell(CancelStream(handoff.key), now)
                return
        result = HandoffResult(
            *(handoff.key, target, handoff.target_unit),
            ok=goes,
            retriable=False,
            message="" if goes else "no endpoint gives a running request away",
            fencing_token=handoff.fencing_token,
        )
        self._todo += self._scheduler.handle(WorkerReported(address, result), now=now)

    def _has_prefilled(self, entry: _Open, now: float) -> None:
        """Note that a prompt is computed, or is not to be."""
        known = self._touch(entry.prefiller)
        entry.prefiller = ""
        if known is not None:
            known.endpoint.end(entry.request.key, now=now)

    # --- answers ----------------------------------------------------------------------

    def _make_room(self, request: Request, now: float) -> None:
        """Shed who waits by a lower class, as long as the scheduler would refuse the request."""
        while (refusal := self._scheduler.refusal_for_now(request)) is not None:
            is_full = len(self._due) >= self._max_waiting
            victim = self._waiting.below(request, is_full=is_full)
            if victim is None:
                return
            message = "a request of a more urgent class has taken its place in the window"
            self._shed(victim, message, refusal.retry_after, now)

    def _on_asked_at_once(self, key: StreamKey, among: tuple[str, ...] | None, now: float) -> None:
        order = self._order(self._candidates(None if among is None else frozenset(among)))
        if order:
            self._actions.append(Pick(key, order[: 1 + self._settings.num_fallbacks], AT_ONCE))
        else:
            self._refuse_none_ready(key, now)

    def _waits_no_more(self, key: StreamKey) -> None:
        if self._due.pop(key, None) is not None:
            self._waiting.remove(self._open[key].request)

    def _close(self, key: StreamKey, now: float) -> _Open | None:
        self._waits_no_more(key)
        entry = self._open.pop(key, None)
        if entry is not None:
            self._has_prefilled(entry, now)
        return entry

    def _refuse_none_ready(self, key: StreamKey, now: float) -> None:
        self._close(key, now)
        message = "no endpoint that may serve this request is ready: try again"
        self._actions.append(Refuse(key, WhyRefused.NONE_READY, message, 1.0))

    def _answer(self, entry: _Open, address: str, rule: str) -> None:
        """Name an endpoint, and behind it those that owe least."""
        entry.at = address
        self._waits_no_more(entry.request.key)
        others = self._order(self._candidates(entry.among, entry.request.model) - {address})
        endpoints = (address, *others[: self._settings.num_fallbacks])
        self._actions.append(Pick(entry.request.key, endpoints, rule, entry.prefiller))

    def _answer_overdue(self, now: float) -> None:
        if not self._due:
            return
        is_any_ready = any(known.joined for known in self._known.values())
        for key, due_at in list(self._due.items()):
            if due_at > now and is_any_ready:
                break
            if key not in self._due:
                continue  # a guess has let the scheduler answer it
            entry = self._open[key]
            if is_any_ready and entry.request.standing.yields:
                message = f"held for {self._settings.longest_hold:g} s by requests that go first"
                self._shed(key, message, max(1.0, self._settings.longest_hold), now)
            else:
                self._guess(entry, now)

    def _shed(self, key: StreamKey, message: str, retry_after: float, now: float) -> None:
        self._close(key, now)
        self._actions.append(Refuse(key, WhyRefused.SHED, message, retry_after))
        self._tell(CancelStream(key), now)

    def _guess(self, entry: _Open, now: float) -> None:
        """Answer at once: the endpoint that owes least, or 503 without any."""
        key = entry.request.key
        self._has_prefilled(entry, now)
        order = self._order(self._candidates(entry.among, entry.request.model))
        if not order:
            self._refuse_none_ready(key, now)
        else:
            known = self._touch(order[0])
            assert known is not None, "it is a candidate"
            known.endpoint.take(entry.request, entry.request.num_tokens, 0, now=now)
            self._answer(entry, order[0], BEST_GUESS)
        self._tell(CancelStream(key), now)

    def _candidates(self, among: frozenset[str] | None, model: str | None = None) -> set[str]:
        """Return the endpoints that may be named: those that are up, or else the silent ones."""
        up, silent = set[str](), set[str]()
        for address, known in self._known.items():
            info, level = known.endpoint.info, known.health.level
            serves = info.role is not Role.PREFILL and (model is None or info.model == model)
            if serves and level is not Level.DOWN and (among is None or address in among):
                (up if level is Level.UP else silent).add(address)
        return up or silent

    def _order(self, addresses: set[str]) -> tuple[str, ...]:
        """Return endpoints in the order in which a guess takes them."""
        endpoints = [self._known[address].endpoint for address in addresses]
        endpoints.sort(key=lambda e: (e.owed_tokens, e.num_requests, e.info.address))
        return tuple(endpoint.info.address for endpoint in endpoints)

    # --- responses --------------------------------------------------------------------

    def _on_responded(self, responded: Responded, now: float) -> None:
        entry = self._open.get(responded.key)
        if entry is None or not entry.at:
            return
        prefiller = self._known.get(entry.prefiller)
        self._has_prefilled(entry, now)
        served, other = responded.served or entry.at, self._known.get(responded.served or entry.at)
        if served != entry.at and (first := self._touch(entry.at)) is not None:
            self._finish(first, responded.key, now)
            first.health.failed(now=now)
            entry.at = served
            if self._touch(served) is not None and other is not None:
                other.endpoint.take(entry.request, entry.request.num_tokens, 0, now=now)
        if other is None:
            return
        level = other.health.level
        if responded.failed and prefiller is not None:
            prefiller.health.failed(now=now)  # of the two it is the one that others share
        elif responded.failed:
            other.health.failed(now=now)
        else:
            other.health.responded(now=now)
        if responded.failed or other.health.level is not level:
            self._touch(served)

    def _on_ended(self, key: StreamKey, now: float) -> None:
        entry = self._close(key, now)
        if entry is None:
            return
        known = self._touch(entry.at)
        if known is not None:
            self._finish(known, key, now)
        elif not entry.at:
            self._tell(CancelStream(key), now)

    def _finish(self, known: _Known, key: StreamKey, now: float) -> None:
        finished = known.endpoint.end(key, now=now)
        if finished is not None:
            self._report(known, now, (finished,))

    # --- endpoints --------------------------------------------------------------------

    def _on_listed(self, info: EndpointInfo, now: float) -> None:
        known = self._touch(info.address)
        if known is None or known.endpoint.info.model != info.model:
            if known is not None:
                self._leave(known, "its model has changed", now)
            endpoint = EndpointLedger(info, self._settings.first_pass)
            health = Health(info.has_metrics, self._settings.rests)
            self._known[info.address] = _Known(endpoint, health, KvChains())
            return
        if known.endpoint.info != info:
            known.endpoint.describe(info)
            known.joined = False  # its snapshot follows

    def _on_unlisted(self, address: str, now: float) -> None:
        known = self._known.get(address)
        if known is not None:
            self._leave(known, "it is no longer listed", now)
            del self._known[address]

    def _on_scraped(self, scrape: Scraped, now: float) -> None:
        known = self._touch(scrape.address)
        if known is None:
            return
        known.health.scraped(scrape, now=now)
        figures = scrape.result if isinstance(scrape.result, EndpointMetrics) else None
        if known.endpoint.scraped(figures, scrape.begun_at, now=now):
            known.joined = False  # its size is another: a snapshot says so
        elif known.joined:
            self._end_forward(known, (), 0.0, (), now)

    def _follow(self, known: _Known, now: float) -> None:
        """Let the scheduler know whether an endpoint takes requests."""
        address = known.endpoint.info.address
        if known.health.level is Level.UP and not known.joined:
            known.joined = True
            snapshot = Snapshot(known.endpoint.worker, (known.endpoint.load(),))
            self._tell(WorkerReported(address, snapshot), now)
            self._believe(known, known.chains.names())
        elif known.health.level is not Level.UP and known.joined:
            reason = "it is down" if known.health.level is Level.DOWN else "it does not answer"
            self._leave(known, reason, now)

    def _leave(self, known: _Known, reason: str, now: float) -> None:
        if known.joined:
            known.joined = False
            address = known.endpoint.info.address
            self._actions.append(Note("endpoint_left", worker_id=address, detail=reason))
            if known.endpoint.info.role is Role.PREFILL:
                self._place_prompts_again()
            self._tell(WorkerGone(address, f"endpoint {address}: {reason}"), now)

    def _place_prompts_again(self) -> None:
        """Let those that wait go where they may without a prefill endpoint that has left."""
        for key in self._due:
            request, among = self._open[key].request, self._open[key].among
            self._scheduler.restrict(key, self._places_of_prompt(request, among))

    def _on_kv_changed(self, event: KvChanged, now: float) -> None:
        known = self._touch(event.address)
        if known is None:
            return
        names: list[tuple[BlockHash, int]] = []
        if event.is_cleared or not event.is_complete:
            known.chains.clear()
            self._scheduler.uncached(event.address, None)
        if not event.is_complete:
            known.endpoint.no_events()
        for stored in event.stored:
            names += known.chains.store(stored)
        removed = known.chains.remove(event.removed)
        if known.joined:
            self._scheduler.uncached(event.address, removed)
            self._believe(known, names)
        num_tokens = sum(len(stored.hashes) * stored.block_size for stored in event.stored)
        if num_tokens:
            known.endpoint.stored(num_tokens, now=now)

    def _on_stepped(self, step: Stepped, now: float) -> None:
        known = self._touch(step.address)
        if known is None:
            return
        if known.endpoint.stepped(step, now=now):
            known.joined = False  # its size is another: a snapshot says so
        elif known.joined and (self._due or step.prefill_tokens) and not known.endpoint.has_ended:
            self._end_forward(known, (), 0.0, (), now)

    def _believe(self, known: _Known, names: Sequence[tuple[BlockHash, int]]) -> None:
        """Let the scheduler know of beginnings that an endpoint has by its events."""
        if names:
            held, numbers = zip(*names, strict=True)
            self._scheduler.cached(known.endpoint.info.address, CachedPrefixes(0, held, numbers))

    # --- the scheduler ----------------------------------------------------------------

    def _report(
        self, known: _Known, now: float, finished: tuple[FinishedRequest, ...] = ()
    ) -> None:
        """Report an endpoint's progress as the end of a forward pass."""
        progress = known.endpoint.progress(now=now)
        if known.joined and (progress is not None or finished):
            ids, seconds = (progress.dispatch_ids, progress.seconds) if progress else ((), 0.0)
            self._end_forward(known, ids, seconds, finished, now)

    def _end_forward(
        self,
        known: _Known,
        dispatch_ids: tuple[int, ...],
        seconds: float,
        finished: tuple[FinishedRequest, ...],
        now: float,
    ) -> None:
        endpoint = known.endpoint
        report = EndForward(
            endpoint.num_passes, seconds, dispatch_ids, (endpoint.load(),), finished=finished
        )
        self._tell(WorkerReported(endpoint.info.address, report), now)

    def _tell(self, event: SchedulerEvent | None, now: float) -> None:
        """Pass an event to the scheduler's core, and perform what it orders."""
        scheduler = self._scheduler
        if event is not None:
            self._todo += scheduler.handle(event, now=now)
        elif scheduler.next_wakeup is not None and scheduler.next_wakeup <= now:
            self._todo += scheduler.wake(now=now)
        while self._todo:
            self._perform(self._todo.popleft(), now)

    def _perform(self, action: SchedulerAction, now: float) -> None:
        match action:
            case SendToWorker(address, Dispatch() as dispatch):
                self._dispatched(address, dispatch, now)
            case SendToGateway(_, Placed() as placed):
                entry = self._open.get(placed.key)
                if entry is not None and not entry.at and not self._is_prefiller(placed.worker_id):
                    self._answer(entry, placed.worker_id, placed.reason)
            case SendToGateway(_, Rejected() as rejected):
                self._rejected(rejected, now)
            case SendToWorker(address, Handoff() as handoff):
                self._handed_off(address, handoff, now)
            case SendToWorker() | SendToGateway() | Persist():
                pass  # an endpoint takes no other orders, and nobody follows this leader
            case Note() | Decision():
                self._actions.append(action)

    def _dispatched(self, address: str, dispatch: Dispatch, now: float) -> None:
        known = self._touch(address)
        assert known is not None, "requests are dispatched to endpoints alone"
        for batch in dispatch.batches:
            for request in batch.requests:
                owed = self._scheduler.owed_tokens(request.key)
                known.endpoint.take(request, owed, dispatch.dispatch_id, now=now)
        self._scheduler.accepted(address, dispatch.dispatch_id, now=now)
        if known.endpoint.info.role is Role.PREFILL:
            self._prefills(address, dispatch, now)

    def _rejected(self, rejected: Rejected, now: float) -> None:
        entry = self._open.get(rejected.key)
        if entry is None or entry.at:
            return
        if rejected.code is not Code.RESOURCE_EXHAUSTED:
            self._guess(entry, now)  # the endpoint says itself what is wrong with a request
            return
        self._close(rejected.key, now)
        self._actions.append(
            Refuse(rejected.key, WhyRefused.SHED, rejected.message, rejected.retry_after)
        )

    # --- for people -------------------------------------------------------------------

    def keep_decisions(self, keeps: bool) -> None:
        """Write decisions down, or not where nobody reads them."""
        self._scheduler.keep_decisions(keeps)

    @property
    def is_ready(self) -> bool:
        """True while an endpoint may be named."""
        return bool(self._candidates(None))

    @property
    def num_waiting(self) -> int:
        """Requests that have no answer yet."""
        return len(self._due)

    def endpoints(self, *, now: float) -> list[EndpointStatus]:
        """Return the figures of all endpoints."""
        return [
            known.endpoint.status(known.health.level.name.lower(), now=now)
            for known in self._known.values()
        ]
