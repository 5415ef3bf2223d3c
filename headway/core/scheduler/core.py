"""The scheduler leader's decisions: when, where and whether each request runs.

One object lives for one term of leadership. Requests wait in their model's window
(``prefill``) and are dispatched to a worker that prefills. Prefilled requests are handed
to a decode unit (``decode``). Requests lost with a worker go back to their gateways.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from headway.blocks import BlockHash
from headway.cluster import UnitId, WorkerInfo
from headway.core.scheduler.admission import SizeLimits, refuse_for_now
from headway.core.scheduler.books import Books
from headway.core.scheduler.decode import DecodePlacer
from headway.core.scheduler.events import (
    Decision,
    Elected,
    GatewayConnected,
    GatewayDisconnected,
    SavedRequest,
    SchedulerAction,
    SchedulerEvent,
    WorkerGone,
    WorkerReported,
)
from headway.core.scheduler.fleet import FleetMeter, QueuedLoad
from headway.core.scheduler.gamma import GammaFits
from headway.core.scheduler.instance import Instance, UnitState
from headway.core.scheduler.memory import LeaderMemory
from headway.core.scheduler.moves import Mover
from headway.core.scheduler.picture import PictureBook, SchedulerStatus
from headway.core.scheduler.places import InWindow, Tracked
from headway.core.scheduler.prefill import MAX_RETRY_AFTER, PrefillPool
from headway.core.scheduler.reports import WorkerReports
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.scheduler.state import SchedulerState
from headway.core.scheduler.wanted_reports import Wants
from headway.errors import Code
from headway.messages import (
    Accepted,
    CachedPrefixes,
    CancelStream,
    EndForward,
    FromWorker,
    HandedBack,
    HandoffResult,
    LoadReport,
    Rejected,
    Snapshot,
    WorkerReached,
)
from headway.policies.scaling.protocol import Fleet
from headway.request import Request, StreamKey

_NO_LOADS = LoadReport(())


class SchedulerCore:
    """``Core[SchedulerEvent, SchedulerAction]``; ``docs/sbs.md`` maps its rules to files."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self._state = SchedulerState(self.settings)
        self._instances: dict[str, Instance] = {}
        self._pools: dict[str, PrefillPool] = {}
        self._limits = SizeLimits(self._instances)
        self._books = Books(self._state, self._instances)
        self._decode = DecodePlacer(self._state, self._instances, self._books, self._pools)
        self._mover = Mover(self._state, self._instances, self._decode)
        self._wants = Wants(self._state, self._instances)
        self._gamma = GammaFits(self._state, self._instances)
        self._memory = LeaderMemory(self._state)
        self._fleet = FleetMeter(self._instances)
        self.pictures = PictureBook(self._state, self._instances, self.status)
        self._reports = WorkerReports(
            self._state, self._instances, self._books, self._pools, self._decode, self._memory
        )
        self._elected = False
        self._unheard: dict[str, None] = {}
        self._grace_until = inf
        self._gone: dict[str, float] = {}
        self._wake_at = inf

    @property
    def next_wakeup(self) -> float | None:
        """Instant of the next deadline, watchdog, turn or end of a grace."""
        return self._wake_at if self._wake_at < inf else None

    def handle(self, event: SchedulerEvent, *, now: float) -> Sequence[SchedulerAction]:
        """React to one event, then dispatch and place what is possible."""
        match event:
            case Request():
                if self._on_submit(event, now) and now < self._wake_at:
                    return self._after_submission(event.model, now)
            case CancelStream(key):
                self._memory.cancel(key)
                self._on_cancel(key)
            case WorkerReported(worker_id, message):
                self._on_worker(worker_id, message, now)
            case WorkerGone(worker_id, reason):
                self._on_worker_gone(worker_id, reason, now)
            case GatewayConnected(gateway_id):
                self._state.gateways[gateway_id] = None
                self._gone.pop(gateway_id, None)
                for instance in self._instances.values():
                    self._tell_reached(instance.info, (gateway_id,))
            case GatewayDisconnected(gateway_id):
                self._state.gateways.pop(gateway_id, None)
                self._gone[gateway_id] = now
            case Elected():
                self._on_elected(event, now)
        return self.wake(now=now)

    def wake(self, *, now: float) -> Sequence[SchedulerAction]:
        """React to the passing of time."""
        longest = self.settings.graces.gateway
        if given_up := {each for each, gone_at in self._gone.items() if now >= gone_at + longest}:
            self._cancel_all(given_up)
        if self._ends_grace(now):
            self._recheck_waiting()
        for request in self._memory.released():
            self._on_submit(request, now)
        lost = [request.key for request in self._memory.lost(now=now)]
        self._state.lose(lost, "the worker that may run it does not report to the new leader")
        self._memory.expire(now=now)
        for pool in self._pools.values():
            pool.expire(now=now)
        if self._leads:
            self._decode.place(now=now)
            self._mover.decide(now=now)
            for pool in self._pools.values():
                pool.dispatch(now=now)
        self._wake_at = self._compute_wakeup(now)
        return self._state.take_actions()

    def _after_submission(self, model: str, now: float) -> Sequence[SchedulerAction]:
        """Dispatch from the one window that has changed; nothing else is due."""
        pool = self._pools[model]
        if self._leads:
            pool.dispatch(now=now)
        self._wake_at = min(pool.wakeup(now=now), self._wake_at)
        return self._state.take_actions()

    def _compute_wakeup(self, now: float) -> float:
        at = min(self._decode.next_wakeup, self._mover.next_wakeup, self._grace_until)
        at = min(at, self._memory.next_wakeup)
        for pool in self._pools.values():
            at = min(at, pool.wakeup(now=now))
        for gone_at in self._gone.values():
            at = min(at, gone_at + self.settings.graces.gateway)
        return at

    # --- leadership -------------------------------------------------------------------

    def _on_elected(self, event: Elected, now: float) -> None:
        self._elected = True
        self._state.fencing_token = event.fencing_token
        self._unheard = {w: None for w in event.worker_ids if w not in self._instances}
        self._grace_until = now + self.settings.graces.election
        self._memory.recall(event.saved, self._instances, now=now)
        for learned in event.learned:
            self._gamma.recall(learned.model, learned.gamma)
            self._pool(learned.model).recall(learned)

    @property
    def _leads(self) -> bool:
        """True once this leader knows enough to dispatch."""
        return self._elected and self._grace_until == inf

    def _ends_grace(self, now: float) -> bool:
        """Return True once: when all members have reported, or the grace has passed."""
        if not self._elected or self._grace_until == inf:
            return False
        if self._unheard and now < self._grace_until:
            return False
        for worker_id in self._unheard:
            self._state.note("worker_not_heard_in_grace", worker_id=worker_id)
        self._unheard.clear()
        self._grace_until = inf
        return True

    # --- gateways ---------------------------------------------------------------------

    def _on_submit(self, request: Request, now: float) -> bool:
        """Take a request; return True if it waits now and nothing else has changed."""
        key = request.key
        if self._state.has_ended(key):
            self._state.answer_again(key, self._is_reached)
            return False
        known = self._state.tracked.get(key)
        if known is not None:
            known.request = known.request or request
            self._books.tell(known, again=True)
            return False
        if self._memory.holds_back(request, now=now):
            return False
        saved = self._memory.take(key)
        refusal = self._refuse(request, now, was_let_in=saved is not None)
        if refusal is not None:
            self._state.reject(refusal)
            return False
        num_tokens = request.num_tokens
        entry = Tracked(
            key, request.request_id, request.model, InWindow(), request, num_tokens, now
        )
        others = self._state.others(entry)
        if any(o.request is not None and o.request.attempt > request.attempt for o in others):
            self._state.end(key)  # overtaken by a later attempt
            return False
        self._books.open(entry)
        for other in others:
            self._on_cancel(other.key)  # the two attempts must not run at once
        self._enter(entry, saved)
        return not others

    def _enter(self, entry: Tracked, saved: SavedRequest | None) -> None:
        """Put it into the window; one that waited before an election gets its old place."""
        service = entry.request.standing.service if entry.request is not None else None
        if service is not None and not service.yields:
            self._state.limits.promise(service.ttft, service.tpot)
        window = self._pool(entry.model).window
        if saved is None or saved.cycle < 0:
            window.add(entry)
            return
        entry.since, entry.cycle = saved.since, saved.cycle
        window.take_back(entry)

    def _refuse(self, request: Request, now: float, *, was_let_in: bool) -> Rejected | None:
        if request.deadline_at <= now:
            late = now - request.deadline_at
            message = f"the deadline had passed {late:.3f} s before the request arrived"
            return Rejected(request.key, Code.DEADLINE_EXCEEDED, message)
        if self._leads:
            refusal = self._limits.refuse(request)
            if refusal is not None:
                return refusal
        return None if was_let_in else self.refusal_for_now(request)

    def refusal_for_now(self, request: Request) -> Rejected | None:
        """Return the refusal of a request that would find no room to wait now, or None."""
        num_waiting = sum(p.window.num_waiting for p in self._pools.values())
        pool = self._pools.get(request.model)
        return refuse_for_now(
            request,
            pool.window if pool is not None else None,
            num_waiting,
            pool.retry_after if pool is not None else lambda: MAX_RETRY_AFTER,
            self.settings,
        )

    def _on_cancel(self, key: StreamKey) -> None:
        entry = self._state.tracked.get(key)
        if entry is None:
            if not self._state.has_ended(key):
                self._state.end(key)  # a snapshot may still report it
            return
        self._reports.end(entry)

    def _cancel_all(self, gateway_ids: Collection[str]) -> None:
        """Cancel all requests of gateways that have not come back, in one look at all requests.

        A worker may have reported requests of as many gateways as it likes to name.
        """
        for gateway_id in gateway_ids:
            del self._gone[gateway_id]
        first, others = min(gateway_ids), len(gateway_ids) - 1
        detail = f"{first} and {others} more" if others else first
        self._state.note("gateway_given_up", detail=detail)
        self._memory.cancel_all(gateway_ids)
        for key in [key for key in self._state.tracked if key.gateway_id in gateway_ids]:
            self._on_cancel(key)

    # --- workers ----------------------------------------------------------------------

    def _on_worker(
        self,
        worker_id: str,
        message: FromWorker,
        now: float,
    ) -> None:
        if isinstance(message, Snapshot):
            self._on_snapshot(worker_id, message, now)
            return
        instance = self._instances.get(worker_id)
        if instance is None:
            return  # it has gone since
        match message:
            case Accepted(dispatch_id):
                self.accepted(worker_id, dispatch_id, now=now)
            case EndForward():
                self._state.costs.heard(instance.info, message.costs, message.constants)
                self.pictures.measured(worker_id, message.costs)
                self._fleet.passed(worker_id, message.pass_time)
                self._fleet.worked(instance, message.work)
                self.pictures.worked(worker_id, message.work)
                if self._gamma.completed(instance, message.finished, now=now):
                    pool = self._pool(instance.info.model)
                    pool.tune(self._state.gammas[pool.model])
                    pool.save()
                self._reports.end_forward(instance, message, now=now)
                for held in message.answering:
                    self._mover.answering(instance, held, now=now)
            case LoadReport():
                self._on_loads(instance, message, now)
            case HandedBack(keys):
                self._reports.handed_back(instance, keys)
            case HandoffResult():
                self._decode.handoff_ended(instance, message, now=now)
                self._decode.retry()
                moved = self._state.tracked.get(message.key)
                if moved is not None and moved.at is not None:
                    self._pool(moved.model).used(moved, moved.at)

    def accepted(self, worker_id: str, dispatch_id: int, *, now: float) -> None:
        """Book that a worker has taken a dispatch; that alone lets nobody go."""
        instance = self._instances[worker_id]
        round_trip = instance.accepted(dispatch_id, now=now)
        if round_trip is not None:
            self._pool(instance.info.model).accepted(round_trip)

    def _on_loads(self, instance: Instance, report: LoadReport, now: float) -> None:
        """Take a report on loads to come, if anybody reads it: it may have been on its way."""
        worker_id = instance.info.worker_id
        if self._wants.reads_loads(worker_id):
            instance.foresee(report)
            self.pictures.foresee(worker_id, report)
            self._mover.report(instance, report, now=now)

    def _on_snapshot(self, worker_id: str, snapshot: Snapshot, now: float) -> None:
        model = snapshot.info.model
        if not self._is_reached(snapshot.info.process_id):
            self._tell_reached(snapshot.info, self._state.gateways)
        self._limits.add(model)
        self._unheard.pop(worker_id, None)
        self._pool(model)
        self._reports.snapshot(worker_id, snapshot, now=now)
        self._state.costs.heard(snapshot.info, snapshot.costs, snapshot.constants)
        self.pictures.measured(worker_id, snapshot.costs)
        self._mover.drains.update(self._instances[worker_id])
        self._gamma.tell(self._instances[worker_id])
        self._memory.heard(worker_id, now=now)
        self._wants.heard(worker_id)
        self._update(worker_id)
        self._pool(model).claimed(snapshot)
        for held in snapshot.held:
            if held.key.gateway_id not in self._state.gateways:
                self._gone.setdefault(held.key.gateway_id, now)
        if self._leads:
            self._recheck_waiting()

    def _is_reached(self, process_id: str) -> bool:
        return any(each.info.process_id == process_id for each in self._instances.values())

    def _tell_reached(self, info: WorkerInfo, gateways: Iterable[str]) -> None:
        """Tell gateways which process this leader reaches: they may believe that it has died."""
        if info.process_id:
            for gateway_id in gateways:
                self._state.tell_gateway(gateway_id, WorkerReached(info.worker_id, info.process_id))

    def _on_worker_gone(self, worker_id: str, reason: str, now: float) -> None:
        self._memory.gone(worker_id, now=now)
        self._unheard.pop(worker_id, None)
        instance = self._instances.pop(worker_id, None)
        if instance is None:
            return
        self._wants.forget(worker_id)
        self._update(worker_id)
        self._mover.forget(worker_id)
        self.pictures.forget(worker_id)
        self._state.costs.forget(worker_id)
        self._reports.lose_all(instance, reason, now=now)
        self._decode.retry()  # its moves had room elsewhere

    def _update(self, worker_id: str) -> None:
        """Note an instance that has joined, left, or changed what it takes."""
        self._decode.update()
        self._limits.update()
        for silent in self._wants.update():
            self._instances[silent].foresee(_NO_LOADS)
            self.pictures.foresee(silent, None)
            self._mover.unreported(silent)
        for pool in self._pools.values():
            pool.update(worker_id)

    def _pool(self, model: str) -> PrefillPool:
        pool = self._pools.get(model)
        if pool is None:
            pool = self._pools[model] = PrefillPool(
                model, self._state, self._instances, self._books
            )
        return pool

    def _recheck_waiting(self) -> None:
        """Refuse waiting requests that can never run, now that models and limits are known."""
        for pool in list(self._pools.values()):
            for entry in pool.window.entries:
                assert entry.request is not None, "only submitted requests wait"
                refusal = self._limits.refuse(entry.request)
                if refusal is not None:
                    pool.window.remove(entry.key)
                    self._state.reject(refusal)
            if pool.is_unused and pool.model not in self._limits.models:
                del self._pools[pool.model]

    def restrict(self, key: StreamKey, worker_ids: Collection[str] | None) -> None:
        """Let a request that waits, or is about to, go to these workers alone; None: to any."""
        self._state.num_restrictions += 1
        if worker_ids is None:
            self._state.restricted.pop(key, None)
        else:
            self._state.restricted[key] = worker_ids

    def owed_tokens(self, key: StreamKey) -> int:
        """Return the tokens of a live request without those cached at its unit."""
        return self._state.tracked[key].num_owed_tokens

    def held_tokens(self, request: Request, worker_ids: Sequence[str]) -> list[int]:
        """Return how many tokens of a prompt the first units of workers have cached."""
        return self._pool(request.model).held_tokens(request, worker_ids)

    def cached(self, worker_id: str, prefixes: CachedPrefixes) -> None:
        """Take beginnings that a worker has cached since its snapshot."""
        info = self._instances[worker_id].info
        self._pool(info.model).cached(info, prefixes)

    def uncached(self, worker_id: str, names: Sequence[BlockHash] | None) -> None:
        """Forget beginnings that a worker no longer holds on its device; None for all."""
        instance = self._instances.get(worker_id)
        if instance is not None:
            self._pool(instance.info.model).uncached(UnitId(worker_id, 0), names)

    def keep_decisions(self, keeps: bool) -> None:
        """Write decisions down, or not where nobody keeps them."""
        self._state.explains = keeps

    @property
    def decisions(self) -> Sequence[Decision]:
        """The last decisions, oldest first."""
        return tuple(self._state.decisions)

    def matrix(self) -> Sequence[UnitState]:
        """Return the state matrix: every unit's ⟨C_avail, B, K⟩ as decisions see it now."""
        return [state for _, i in sorted(self._instances.items()) for state in i.matrix()]

    def fleets(self, *, now: float) -> Mapping[str, Fleet] | None:
        """Return all workers by model, for autoscalers; None while some have not reported."""
        if not self._leads:
            return None
        for_decode = self._decode.num_waiting_by_model()
        waiting = {
            model: QueuedLoad.of(pool.window, for_decode.get(model, 0))
            for model, pool in self._pools.items()
        }
        return {
            model: replace(fleet, network_tokens_per_s=self._state.costs.of(model).measured_network)
            for model, fleet in self._fleet.read(waiting, now=now).items()
        }

    def status(self) -> SchedulerStatus:
        """Return the figures for metrics."""
        return SchedulerStatus(
            tuple(pool.status() for pool in self._pools.values()),
            len(self._instances),
            len(self._state.tracked),
            self._decode.num_waiting,
            self._memory.num_held_back,
            self._state.counters,
        )
