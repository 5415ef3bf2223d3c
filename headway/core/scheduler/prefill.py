"""Waiting requests of one model, and the instances that prefill them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import cast

from headway.blocks import BlockHash
from headway.cluster import UnitId, WorkerInfo
from headway.core.scheduler.books import Books
from headway.core.scheduler.events import Chosen, Considered, Decision, Learned
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.places import OnUnit, Tracked
from headway.core.scheduler.prefix_figures import PrefixFigures
from headway.core.scheduler.prefixes import IndexMatches, Prefixes
from headway.core.scheduler.state import SchedulerState
from headway.core.scheduler.unit_tenants import UnitTenants
from headway.core.scheduler.window import Yielding
from headway.core.scheduler.windows import Group, TenantWindows, whose
from headway.core.token_counters import CREDIT
from headway.cost.costs import Constant, Source
from headway.errors import Code
from headway.messages import (
    Admission,
    CachedPrefixes,
    Dispatch,
    EndForward,
    Rejected,
    Snapshot,
    UnitBatch,
)
from headway.policies import registry
from headway.policies.dispatch import Dispatching, InstanceLoad, Turn
from headway.policies.dispatch.protocol import FindMatches, OwnUnit, SlidingMean, Waiting
from headway.policies.packing import NO_HITS, Assigned, Hits, Packing, Room
from headway.policies.readers import GammaReader, constants_of
from headway.request import Request, StreamKey

Fill = Callable[[Sequence[Tracked], Sequence[Tracked]], list[Assigned[Tracked]]]
"""Packs those left over and new ones into the rooms of a turn."""
MAX_RETRY_AFTER = 60.0
_MOST_FRUITLESS = 32
"""Turns that nobody can use before they are tried less often."""
_LONGEST_REST = 1.0
"""Seconds between them at last."""
SAVING_PERIOD = 16
"""T in a turn of a wait for room: blocks are saved in all of them but the first."""
SAVED_FROM_ALL = 4
"""T, after which blocks are saved for a request from readers' first tokens, too."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A model's prefill side at one instant, for metrics; seconds, counts, tokens."""

    model: str
    num_active: int
    num_waiting: int
    num_at_door: int
    backlog_tokens: int
    yielding: Yielding
    longest_wait_cycles: int
    flow_level: str
    interval: float
    mean_pass_time: float
    dispatch_latency: float
    num_bad_times: int
    constants: tuple[Constant, ...]
    """Constants that dispatches and placements of the model use."""
    prefixes: PrefixFigures | None = None
    """None without an index."""
    held: Sequence[tuple[str, OwnUnit]] = ()
    """Requests that wait for their own unit, by id."""


class PrefillPool:
    """The dispatching of one model's window: which requests, when and where."""

    def __init__(
        self, model: str, state: SchedulerState, instances: Mapping[str, Instance], books: Books
    ) -> None:
        settings = state.settings
        self.model = model
        self.window = TenantWindows(settings.flow_control, self._entered)
        self._state = state
        self._instances = instances
        self._books = books
        self._active: dict[str, InstanceLoad] = {}
        self._changed: dict[str, None] = {}
        """Instances whose loads are to be looked at again."""
        self._dispatching: Dispatching = registry.make(
            "dispatch", settings.dispatch, **settings.dispatch_params
        )
        self._packing: Packing = registry.make(
            "packing", settings.packing, **settings.packing_params
        )
        for policy in (self._dispatching, self._packing):
            state.costs.add_reader(model, policy)
        self._velocities = SlidingMean(32, 0.0)
        self._prefixes = Prefixes() if settings.prefix_hits else None
        if self._prefixes is not None:
            self._dispatching.matches = cast("FindMatches", self._matches)
            self._dispatching.matches_version = self._matches_version
        self._dispatching.whose = cast("Callable[[Waiting], Hashable]", whose)
        self.tenants = UnitTenants(state, self.window)
        self.window.in_service = self.tenants.charged
        self._num_fruitless = 0
        """Turns since the last report or dispatch that nobody could use."""
        self._rest_until = -inf
        self._saving: tuple[StreamKey | None, str] = None, ""
        """Who has waited T and finds no room, and the instance that saves its blocks for it."""

    def _entered(self, entry: Tracked) -> None:
        self._state.changed(entry.key)

    # --- topology ---------------------------------------------------------------------

    @property
    def is_unused(self) -> bool:
        """True if it has no instance and no waiting request."""
        return not self._active and not self.window.num_waiting

    def update(self, worker_id: str) -> None:
        """Note an instance that joined, left, or changed its role or health."""
        self._num_fruitless, self._rest_until = 0, -inf
        instance = self._instances.get(worker_id)
        active = instance is not None and instance.takes_prefill
        if active and instance is not None and instance.info.model == self.model:
            self._active[worker_id] = instance.load
            if self._prefixes is not None:
                self._prefixes.join(instance.info)
            if not any(each is self._changed for each in instance.watchers):
                instance.watchers.append(self._changed)
            self._dispatching.join(worker_id, instance.info.role)
        else:
            self._active.pop(worker_id, None)
            self._dispatching.leave(worker_id)
            if self._prefixes is not None:
                self._prefixes.rest(worker_id)
        self.window.counters.credit = CREDIT * self._chunks()
        if instance is None:
            self.tenants.forget(worker_id)
        if instance is None and self._prefixes is not None:
            self._prefixes.forget(worker_id)

    # --- prefixes ---------------------------------------------------------------------

    def claimed(self, snapshot: Snapshot) -> None:
        """Take the beginnings that a worker has cached by its snapshot."""
        if self._prefixes is not None:
            self._prefixes.claim(snapshot.info, snapshot.prefixes)

    def cached(self, info: WorkerInfo, prefixes: CachedPrefixes) -> None:
        """Take beginnings that a worker has cached since its snapshot."""
        if self._prefixes is not None:
            self._prefixes.claim(info, (prefixes,))

    def uncached(self, unit: UnitId, names: Sequence[BlockHash] | None) -> None:
        """Forget beginnings that a unit no longer holds; None for all."""
        if self._prefixes is not None:
            self._prefixes.lost(unit, names)

    def admitted(self, entry: Tracked, said: Admission) -> None:
        """Take what an admission found cached at the request's unit."""
        if self._prefixes is not None and isinstance(entry.place, OnUnit):
            self._prefixes.admitted(entry, entry.place.unit, said, entry.hit.num_tokens)

    def _matches(self, entry: Tracked) -> IndexMatches | None:
        """Return who holds beginnings of a prompt, of those that the request may go to."""
        if self._prefixes is None:
            return None
        return self._prefixes.matches(entry, self._state.restricted.get(entry.key))

    def _matches_version(self) -> Hashable:
        assert self._prefixes is not None, "who asks reads prefixes"
        return self._prefixes.version, self._state.num_restrictions

    def held_tokens(self, request: Request, worker_ids: Sequence[str]) -> list[int]:
        """Return how many tokens of a prompt the first units of workers hold."""
        if self._prefixes is None:
            return [0] * len(worker_ids)
        return self._prefixes.held_tokens(request, (UnitId(each, 0) for each in worker_ids))

    def used(self, entry: Tracked, unit: UnitId, names: Sequence[BlockHash] = ()) -> None:
        """Note that a unit has the KV of a request, with waypoints behind its prompt by name."""
        if self._prefixes is not None:
            self._prefixes.note(entry, unit, names)

    # --- reports ----------------------------------------------------------------------

    def accepted(self, round_trip: float) -> None:
        """Take the round trip of an acknowledged dispatch, seconds."""
        self._dispatching.acknowledged(round_trip)

    def ended(self, instance: Instance, report: EndForward, *, now: float) -> None:
        """Book the loads and times of a pass. T̄ averages passes with prefill only."""
        worker_id, pass_time = instance.info.worker_id, report.pass_time
        self.tenants.reported(instance.info, report.loads)
        self._num_fruitless, self._rest_until = 0, -inf
        had_backlog = instance.has_backlog
        for dispatch_id in report.dispatch_ids:
            instance.accepted(dispatch_id, now=now)
        instance.report(report.loads, now=now)
        prefilled = instance.info.role.prefills and bool(report.dispatch_ids or had_backlog)
        prefilled = prefilled and pass_time != 0
        if prefilled and 0 < pass_time < inf and (velocity := instance.velocity(report, now=now)):
            self._velocities.add(velocity)
        num_bad = self._dispatching.num_bad_times
        self._dispatching.ended(
            worker_id, report.dispatch_ids, pass_time if prefilled else None, now=now
        )
        if self._dispatching.num_bad_times > num_bad:
            self._state.note("bad_pass_time", worker_id=worker_id, detail=repr(pass_time))

    def tune(self, gamma: float) -> None:
        """Pack by the γ that is fitted for the pool's workers, too (UniBoost)."""
        if isinstance(self._packing, GammaReader):
            self._packing.tune(gamma, Source.MEASURED)

    def recall(self, learned: Learned) -> None:
        """Continue from what an earlier leader measured."""
        self.window.cycle = learned.cycle
        self._dispatching.recall(learned.mean_pass_time, learned.dispatch_latency)
        self._velocities.recall(learned.velocity)
        gamma = self._state.gammas.get(self.model)
        if gamma is not None:
            self.tune(gamma)

    def save(self) -> None:
        """Save the measurements, including γ, for the next leader."""
        if self._state.settings.persists:
            self._state.learn(self._learned())

    def _learned(self) -> Learned:
        return Learned(
            self.model,
            self.window.cycle,
            self._dispatching.mean_pass_time,
            self._dispatching.dispatch_latency,
            self._velocities.value,
            self._state.gammas.get(self.model, 0.0),
        )

    # --- flow control -----------------------------------------------------------------

    def retry_after(self) -> float:
        """Return a hint: seconds to compute the backlog at the measured velocity, 1 to 60."""
        velocity = self._velocity()
        if velocity <= 0:
            return MAX_RETRY_AFTER
        return min(max(self.window.backlog_tokens / velocity, 1.0), MAX_RETRY_AFTER)

    def _velocity(self) -> float:
        """Return prompt tokens per second of all active instances."""
        if self._velocities.value > 0:
            return self._velocities.value * len(self._active)
        return self._chunks() / self._dispatching.mean_pass_time

    def _chunks(self) -> int:
        infos = (self._instances[worker_id].info for worker_id in self._active)
        return sum(info.turn_tokens * info.num_units for info in infos)

    def expire(self, *, now: float) -> None:
        """Handle deadlines and watchdogs that are due."""
        for entry in self.window.expire(now=now):
            assert entry.request is not None, "only submitted requests wait"
            waited = now - entry.since
            message = f"the deadline passed after {waited:.3f} s in the scheduler's window"
            self._state.reject(Rejected(entry.key, Code.DEADLINE_EXCEEDED, message))
        for expiry in self._dispatching.expire(now=now):
            self._instances[expiry.worker_id].reset_in_flight()
            detail = f"dispatch {expiry.dispatch_id}: no EndForward for {expiry.waited:.3f} s"
            self._state.note("watchdog_expired", worker_id=expiry.worker_id, detail=detail)

    # --- dispatch ---------------------------------------------------------------------

    def dispatch(self, *, now: float) -> None:
        """Dispatch on every turn that is due."""
        tried = used = False
        while self.window.num_admitted:
            window = self.window
            turns = self._dispatching.turns(
                self._loads(), window.num_waiting, now=now, waiting=window.admitted
            )
            window.hold(self._dispatching.held)
            for turn in turns:
                tried = True
                if self._use(turn, now):
                    used = True
                    break
                self._dispatching.passed(turn, now=now)
            else:
                break
        else:  # who was saved for waits no longer
            self._saving = None, ""
        if tried:
            cycle_time = self._dispatching.cycle_time
            self.window.end_cycle(cycle_time, now=now, rested=self._num_fruitless > _MOST_FRUITLESS)
            self._rest(cycle_time, used, now)
        if tried and self._num_fruitless <= _MOST_FRUITLESS:
            self.save()

    def _loads(self) -> list[InstanceLoad]:
        """Return the loads of active instances; only those that have changed are looked at."""
        for worker_id in self._changed:
            if worker_id in self._active:
                self._active[worker_id] = self._instances[worker_id].load
        self._changed.clear()
        loads = list(self._active.values())
        if self.window.has_readers:
            loads = [_for_readers(load) for load in loads]
        head = self.window.next if self.window.are_several else None
        return loads if head is None else [self._with_room(load, head) for load in loads]

    def _rest(self, cycle_time: float, used: bool, now: float) -> None:
        """Try turns less and less often while no instance takes a waiting request."""
        self._num_fruitless = 0 if used else self._num_fruitless + 1
        doubled = min(max(self._num_fruitless - _MOST_FRUITLESS, 0), 30)
        rest = min(cycle_time * 2**doubled, _LONGEST_REST) if doubled else 0.0
        self._rest_until = now + rest

    def _use(self, turn: Turn, now: float) -> bool:
        instance = self._instances[turn.worker_id]
        rooms, chunk = instance.rooms(), instance.info.turn_tokens
        for room in rooms:
            room.capacity -= int(max(0.0, room.capacity - turn.max_tokens))
        most = chunk * len(rooms) if self.window.are_several else inf
        takes = partial(self._may_take, instance)
        steps_back = partial(self._dispatching.steps_back, now=now)
        legacy, new = self.window.split(
            turn.keys, takes=takes, num_tokens=most, steps_back=steps_back
        )
        if turn.max_requests is None:
            num_tokens = sum(max(0, room.capacity) for room in rooms)
            groups = self.window.groups(legacy, new, num_tokens, steps_back)
        else:
            groups = [([], self.window.in_turn([*legacy, *new], steps_back)[: turn.max_requests])]
        considered: tuple[Considered, ...] = ()
        if self._state.explains:
            considered = tuple(
                Considered(room.unit, (room.capacity, chunk), room.num_free_blocks)
                for room in rooms
            )
        assigned = self._pack(groups, rooms, turn, now)
        if not assigned:
            return False
        dispatch = self._send(instance, rooms, assigned, turn, now)
        if turn.capped and turn.max_requests is None:  # others hold nobody's prompt back
            self.tenants.sent(assigned)
        used = {each.request.key: turn.own.get(each.request.key) for each in assigned}
        own = {key: each for key, each in used.items() if each is not None}
        self._dispatching.dispatched(turn._replace(own=own), dispatch.dispatch_id, now=now)
        if self._state.explains:
            self._explain(turn, considered, assigned, now)
        return True

    def _may_take(self, instance: Instance, entry: Tracked) -> bool:
        request, among = entry.request, self._state.restricted.get(entry.key)
        if among is not None and instance.info.worker_id not in among:
            return False
        return request is not None and instance.could_hold(request)

    def _with_room(self, load: InstanceLoad, head: Tracked) -> InstanceLoad:
        """Return a load with the chunk and the blocks that the tenant finds who is next.

        If that one floods it, the next one counts who does not.
        """
        instance, tenants = self._instances[load.worker_id], self.tenants
        if not load.has_capacity:
            if tenants.floods(head.tenant, instance):
                others = self.window.firsts()
                head = next((e for e in others if not tenants.floods(e.tenant, instance)), head)
            info = instance.info
            units = (UnitId(load.worker_id, unit) for unit in range(info.num_units))
            rooms = (tenants.room(head.tenant, unit, info.turn_tokens) for unit in units)
            load = replace(load, has_capacity=True) if any(n > 0 for n in rooms) else load
        return tenants.with_blocks(load, head, instance)

    def _pack(
        self, groups: Sequence[Group], rooms: Sequence[Room], turn: Turn, now: float
    ) -> list[Assigned[Tracked]]:
        """Return who goes where: those of tenants that were served least, then as packing says."""
        hits = self._hits_on([room.unit for room in rooms])
        own = {key: each.unit for key, each in turn.own.items()}
        assigned: list[Assigned[Tracked]] = []
        if self.window.are_several:
            everybody = [entry for group in groups for part in group for entry in part]
            pack = partial(self._packing.pack, capped=turn.capped, own=own)
            instance, capped = self._instances[turn.worker_id], turn.capped
            capped = capped and turn.max_requests is None
            assigned = self.tenants.pack(everybody, rooms, instance, pack, capped=capped)
            taken = {each.request.key for each in assigned}
            groups = [
                ([e for e in legacy if e.key not in taken], [e for e in new if e.key not in taken])
                for legacy, new in groups
            ]
        fill = partial(self._packing.pack, rooms=rooms, hits=hits, capped=turn.capped, own=own)
        for legacy, new in groups:
            assigned += self._pack_group(legacy, new, rooms, fill, turn.worker_id, now)
        return assigned

    def _pack_group(
        self,
        legacy: Sequence[Tracked],
        new: Sequence[Tracked],
        rooms: Sequence[Room],
        fill: Fill,
        worker_id: str,
        now: float,
    ) -> list[Assigned[Tracked]]:
        """Assign those of a group: who waits too long, readers' first tokens, and the others."""
        assigned: list[Assigned[Tracked]] = []
        head, num_waits = self._longest((*legacy, *new), now)
        if head is not None and num_waits >= SAVED_FROM_ALL:
            assigned += fill((head,), ())
            if not assigned and self._saves(head, worker_id, rooms):
                return []
            legacy, new = ([e for e in part if e is not head] for part in (legacy, new))
            head, _ = self._longest((*legacy, *new), now)
        first = self._pack_readers(legacy, new, rooms, fill, worker_id)
        if first:
            assigned += first
            gone = {each.request.key for each in first}
            legacy, new = ([e for e in part if e.key not in gone] for part in (legacy, new))
        if head is not None and self._saves(head, worker_id, rooms):
            legacy, new = ([e for e in part if e.opens_answer] for part in (legacy, new))
        return [*assigned, *fill(legacy, new)]

    def _pack_readers(
        self,
        legacy: Sequence[Tracked],
        new: Sequence[Tracked],
        rooms: Sequence[Room],
        fill: Fill,
        worker_id: str,
    ) -> list[Assigned[Tracked]]:
        """Assign readers' first tokens, where some of what is not free yields to them."""
        yielding = self._instances[worker_id].yielding
        beside = [yielding(room.unit.unit) for room in rooms]
        waited, fresh = ([e for e in part if e.passes_others] for part in (legacy, new))
        if not any(map(any, beside)) or not (waited or fresh):
            return []
        for room, (num_tokens, num_blocks) in zip(rooms, beside, strict=True):
            room.capacity += num_tokens
            room.num_free_blocks += num_blocks
        assigned = fill(waited, fresh)
        for room, (num_tokens, num_blocks) in zip(rooms, beside, strict=True):
            room.capacity -= num_tokens
            room.num_free_blocks -= num_blocks
        return assigned

    def _longest(self, waiting: Sequence[Tracked], now: float) -> tuple[Tracked | None, int]:
        """Return who has waited longest of those that nobody reads yet, and how many T.

        None before T of the workers' order, and in one T of ``SAVING_PERIOD``: then nothing is
        saved, and the others go on.
        """
        wait = self._state.costs.unread_wait(self.model)
        if not 0 < wait < inf:
            return None, 0
        held = self._dispatching.held
        unread = [e for e in waiting if not (e.opens_answer or e.yields or e.key in held)]
        head = min(unread, key=lambda entry: (entry.arrival_at, entry.key), default=None)
        num_waits = 0 if head is None else int((now - head.arrival_at) / wait)
        return (head, num_waits) if num_waits % SAVING_PERIOD else (None, 0)

    def _saves(self, head: Tracked, worker_id: str, rooms: Sequence[Room]) -> bool:
        """Return whether this instance saves its blocks for who has waited longest.

        Smaller ones would take whatever is free before there is enough for it. Readers' first
        tokens pass it all the same, until ``SAVED_FROM_ALL``. One instance of the pool saves.
        """
        if any(room.fits(head.num_tokens) for room in rooms):
            return False
        if self._saving[0] != head.key or self._saving[1] not in self._active:
            self._saving = head.key, worker_id
        return self._saving[1] == worker_id

    def _hits_on(self, units: Sequence[UnitId]) -> Hits[Tracked] | None:
        """Return what tells the tokens that these units hold of a prompt; None if unknown."""
        prefixes = self._prefixes
        if prefixes is None:
            return None

        def hits(entry: Tracked) -> Mapping[UnitId, int]:
            matches = prefixes.matches(entry)
            if matches is None:
                return NO_HITS
            return {unit: matches.hit(unit).num_tokens for unit in units}

        return hits

    def _send(
        self,
        instance: Instance,
        rooms: Sequence[Room],
        assigned: Sequence[Assigned[Tracked]],
        turn: Turn,
        now: float,
    ) -> Dispatch:
        worker_id = instance.info.worker_id
        self.window.dispatched([a.request for a in assigned])
        by_unit: dict[UnitId, list[Tracked]] = {room.unit: [] for room in rooms}
        for a in assigned:
            by_unit[a.unit].append(a.request)
        batches = tuple(
            UnitBatch(unit.unit, tuple(map(self._as_sent, entries)))
            for unit, entries in by_unit.items()
            if entries
        )
        dispatch = Dispatch(self._state.next_dispatch_id(), batches)
        for a in assigned:
            if self._prefixes is not None:
                a.request.hit = self._prefixes.dispatched(a.request, a.unit)
        cached = {a.request.key: a.request.hit.num_tokens for a in assigned}
        instance.sent(dispatch, now=now, cached=cached)
        self._state.tell_worker(worker_id, dispatch)
        for a in assigned:
            own = turn.own.get(a.request.key)
            goes_home = own is not None and own.num_hit_tokens > 0
            reason = f"{turn.rule}, own unit" if goes_home else turn.rule
            a.request.chosen(now)
            self._books.dispatch(a.request, a.unit, reason)
        return dispatch

    def _as_sent(self, entry: Tracked) -> Request:
        """Return a request for its worker, which is told whether its tenant floods."""
        request = entry.request
        assert request is not None, "only submitted requests wait"
        window = self.window
        if not window.are_several or window.backlog_of(entry.tenant) <= self._chunks():
            return request
        return replace(request, standing=replace(request.standing, floods=True))

    def _explain(
        self,
        turn: Turn,
        considered: tuple[Considered, ...],
        assigned: Sequence[Assigned[Tracked]],
        now: float,
    ) -> None:
        chosen = tuple(
            Chosen(
                a.request.key,
                a.request.request_id,
                a.unit,
                (a.capacity,),
                now - a.request.since,
                turn.own.get(a.request.key),
            )
            for a in assigned
        )
        num_left = self.window.num_admitted
        used = constants_of(self._dispatching, self._packing)
        used += self._state.costs.orders_of(each.unit.worker_id for each in assigned)
        self._state.explain(
            Decision("dispatch", now, self.model, turn.rule, considered, chosen, num_left, used)
        )

    # --- time and status --------------------------------------------------------------

    def wakeup(self, *, now: float) -> float:
        """Return the instant when time alone may change something; infinite if it cannot."""
        loads: list[InstanceLoad] = []  # only matter while requests wait
        if self.window.num_admitted:
            loads = self._loads()
        at = self._dispatching.wakeup(loads, self.window.num_admitted, now=now)
        at = at if at is not None else inf
        if at < self._rest_until:
            watchdog_at = self._dispatching.wakeup((), 0, now=now)
            at = min(self._rest_until, watchdog_at if watchdog_at is not None else inf)
        return min(self.window.next_deadline, at)

    def _held(self) -> Sequence[tuple[str, OwnUnit]]:
        """Return who waits for its own unit; the policy may still name some that have gone."""
        held = self._dispatching.held
        if not held:
            return ()
        return [(e.request_id, held[e.key]) for e in self.window.admitted if e.key in held]

    def status(self) -> PoolStatus:
        """Return the figures for metrics."""
        window, dispatching = self.window, self._dispatching
        return PoolStatus(
            self.model,
            len(self._active),
            window.num_waiting,
            window.num_waiting - window.num_admitted,
            window.backlog_tokens,
            window.yielding,
            window.longest_wait,
            window.worst_level.value,
            dispatching.interval,
            dispatching.mean_pass_time,
            dispatching.dispatch_latency,
            dispatching.num_bad_times,
            self._state.costs.constants(self.model),
            None if self._prefixes is None else self._prefixes.figures,
            self._held(),
        )


def _for_readers(load: InstanceLoad) -> InstanceLoad:
    """Return a load that is open if it is to a reader's first token: one waits."""
    if not load.takes_readers or (load.has_capacity and load.has_room):
        return load
    return replace(load, has_capacity=True, has_room=True)
