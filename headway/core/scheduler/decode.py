"""Prefilled requests: the choice of their decode units, and the ends of their handoffs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from headway.cluster import UnitId
from headway.core.scheduler.admission import horizon_of
from headway.core.scheduler.books import Books
from headway.core.scheduler.events import Chosen, Considered, Decision
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.places import Moving, OnUnit, Prefilled, Tracked
from headway.core.scheduler.prefill import PrefillPool
from headway.core.scheduler.state import SchedulerState
from headway.messages import CancelStream, Handoff, HandoffResult, HeldRequest
from headway.policies import registry
from headway.policies.placement import Choice, DecodeUnit, Placement
from headway.policies.placement.table import UnitTable
from headway.policies.readers import constants_of
from headway.request import StreamKey

Pool = tuple[str, str]
"""A model and a kind of KV (``WorkerInfo``): it can go between any two workers of a pool."""
_MOST_REFUSED = 4
"""Times that full units refuse a request until it waits for one that has room."""


class DecodePlacer:
    """A placer of prefilled requests, in batches; the others wait for the next report."""

    def __init__(
        self,
        state: SchedulerState,
        instances: Mapping[str, Instance],
        books: Books,
        pools: Mapping[str, PrefillPool],
    ) -> None:
        self._state = state
        self._instances = instances
        self._books = books
        self._pools = pools
        self._are_refused = False
        """True if requests may wait for the next reports of units that have refused them."""
        self._placements: dict[str, Placement] = {}
        self._tables: dict[Pool, UnitTable] = {}
        self._changed: dict[str, None] = {}
        self._resumed: dict[StreamKey, tuple[Tracked, UnitId, bool]] = {}
        self._rest_until = inf
        self._stale = False
        self._horizon = horizon_of(state.settings)

    @property
    def num_waiting(self) -> int:
        """Number of prefilled requests without a decode unit."""
        return len(self._books.prefilled)

    def num_waiting_by_model(self) -> Mapping[str, int]:
        """Return the number of prefilled requests without a decode unit, by model."""
        return Counter(entry.model for entry in self._books.prefilled.values())

    @property
    def next_wakeup(self) -> float:
        """Instant when a unit that failed a handoff may be tried again; infinite for none."""
        return self._rest_until

    # --- adding and removing ----------------------------------------------------------

    def retry(self, worker_id: str = "") -> None:
        """Try waiting requests again, after a change of loads, as of this worker, or a new unit."""
        self._stale = True
        if worker_id and self._are_refused:
            self._books.end_rests(-inf, worker_id)
            self._are_refused = bool(self._books.prefilled)

    def add(self, entry: Tracked, held: HeldRequest, *, now: float) -> None:
        """Take a prefilled request whose worker holds the KV and waits for an order."""
        self._books.prefill(entry, held, now=now)
        self._stale = True

    # --- placement --------------------------------------------------------------------

    def place(self, *, now: float) -> None:
        """Find units for waiting requests."""
        self._end_rests(now)
        self._resume_moves()
        if not self._stale:
            return
        self._stale = False
        for (model, kind), entries in sorted(self._by_pool().items()):
            units = self.units(model, kind)
            if not units and self._has_others(model):
                self._replay(entries, kind)
                continue
            considered = self.considered(entries, units)
            choices: list[Choice[Tracked]] = []
            for group in self._in_turn(entries):
                placed = self.placement(model).place(group, units)
                if len(placed) < len(group):
                    placed += self._place_on_full(group, placed, units)
                for choice in placed:
                    choice.request.chosen(now)
                    self.hand_off(choice.request, choice.unit)
                choices += placed
            if choices:
                self.explain("placement", considered, choices, len(entries) - len(choices), now)

    def _in_turn(self, entries: Sequence[Tracked]) -> Iterator[list[Tracked]]:
        """Yield the requests of each tenant, who was served least first, the yielding last."""
        counters = self._pools[entries[0].model].window.counters
        groups: dict[tuple[bool, float, str], list[Tracked]] = {}
        for entry in entries:
            turn = entry.yields, counters.of(entry.tenant), entry.tenant
            groups.setdefault(turn, []).append(entry)
        for turn in sorted(groups):
            yield groups[turn]

    def _place_on_full(
        self,
        group: Sequence[Tracked],
        placed: Sequence[Choice[Tracked]],
        units: Sequence[DecodeUnit],
    ) -> list[Choice[Tracked]]:
        """Place a tenant's requests as if who was served more had left the units.

        A worker keeps KV that comes in host memory, or refuses it and makes room in its next plan.
        """
        tenant, model, most = group[0].tenant, group[0].model, self._state.settings.moves.per_link
        pool, wider = self._pools[model], list[DecodeUnit]()
        for unit in units if pool.window.are_several else ():
            instance = self._instances[unit.unit.worker_id]
            place = tenant, instance, unit.unit.unit
            num_blocks = max(pool.tenants.num_blocks(*place), pool.tenants.num_even(*place))
            if num_blocks > unit.num_free_blocks and len(instance.inbound_keys) < most:
                wider.append(replace(unit, num_free_blocks=num_blocks))
        if not wider:
            return []
        gone = {choice.request.key for choice in placed}
        left = [e for e in group if e.key not in gone and e.request is not None]
        left = [e for e in left if _num_refused(e) < _MOST_REFUSED]
        return self.placement(model).place(left, wider)

    def _by_pool(self) -> dict[Pool, list[Tracked]]:
        """Return the requests that wait for a decode unit, by where their KV may go."""
        pools: dict[Pool, list[Tracked]] = {}
        for entry in self._books.prefilled.values():
            source = self._instances.get(entry.worker_id)
            if source is not None:
                pools.setdefault(pool_of(source), []).append(entry)
        return pools

    def _has_others(self, model: str) -> bool:
        """Return whether a worker decodes this model, whatever the kind of its KV."""
        return any(i.takes_decode and i.info.model == model for i in self._instances.values())

    def _replay(self, entries: Sequence[Tracked], kind: str) -> None:
        """Give up KV that no worker takes; the requests are computed again from their tokens."""
        for entry in entries:
            self._state.tell_worker(entry.worker_id, CancelStream(entry.key))
            self._books.close(entry)
        reason = f"no worker that decodes takes KV of kind {kind!r}"
        self._state.lose([entry.key for entry in entries], reason)

    def placement(self, model: str) -> Placement:
        """Return the policy that places a model's requests."""
        placement = self._placements.get(model)
        if placement is None:
            settings = self._state.settings
            placement = registry.make("placement", settings.placement, **settings.placement_params)
            self._placements[model] = placement
            self._state.costs.add_reader(model, placement)
        return placement

    def update(self) -> None:
        """Note that an instance has joined, left, or changed what it takes."""
        self._tables.clear()

    def _table(self, pool: Pool) -> UnitTable:
        """Return a pool's units; only those of instances that have changed are looked at."""
        if not self._tables:
            self._changed.clear()
        for worker_id in self._changed:
            instance = self._instances.get(worker_id)
            table = self._tables.get(pool_of(instance)) if instance is not None else None
            if instance is not None and table is not None and instance.takes_decode:
                for unit in self._decode_units(instance):
                    table.update(unit)
        self._changed.clear()
        table = self._tables.get(pool)
        if table is None:
            units: list[DecodeUnit] = []
            for _, instance in sorted(self._instances.items()):
                if instance.takes_decode and instance.info.kv_kind and pool_of(instance) == pool:
                    units += self._decode_units(instance)
                    if not any(each is self._changed for each in instance.watchers):
                        instance.watchers.append(self._changed)
            table = self._tables[pool] = UnitTable(units)
        return table

    def units(self, model: str, kind: str) -> Sequence[DecodeUnit]:
        """Return the units that take KV of a model and kind, as a placement policy sees them."""
        if self.placement(model).reads_buckets:
            self._books.count_buckets()
        return self._table((model, kind))

    def _decode_units(self, instance: Instance) -> Sequence[DecodeUnit]:
        """Return an instance's units, with what the placement policy reads of them."""
        placement, units = self.placement(instance.info.model), instance.decode_units()
        if placement.reads_buckets:
            counts = self._books.count_buckets()
            for unit in units:
                unit.bucket_counts = counts.of(unit.unit)
        if placement.reads_ahead:
            for unit in units:
                if unit.ahead is None:  # else nothing has changed since
                    unit.ahead = instance.ahead(unit, self._horizon)
        return units

    def hand_off(self, entry: Tracked, unit: UnitId) -> None:
        """Order the move; a repeated order changes nothing."""
        self._books.order(entry, unit)
        address, token = self._instances[unit.worker_id].info.address, self._state.fencing_token
        order = Handoff(entry.key, unit.worker_id, address, unit.unit, token)
        self._state.tell_worker(entry.worker_id, order)

    def resume(self, entry: Tracked, unit: UnitId, *, relocating: bool) -> None:
        """Resume an earlier leader's move once all workers are known."""
        self._resumed[entry.key] = entry, unit, relocating

    def _resume_moves(self) -> None:
        """Repeat the orders; a source that already has one ignores it."""
        resumed, self._resumed = self._resumed, {}
        for entry, unit, relocating in resumed.values():
            target = self._instances.get(unit.worker_id)
            known = target is not None and target.takes_decode and unit.unit < target.info.num_units
            place = entry.place
            goes_on = isinstance(place, Prefilled) or (isinstance(place, OnUnit) and relocating)
            if known and goes_on and self._state.tracked.get(entry.key) is entry:
                self.hand_off(entry, unit)

    def relocate(self, entry: Tracked, unit: UnitId, *, now: float) -> None:
        """Move a running request, which keeps running at its source until it can leave."""
        entry.moved_at = now
        self._state.counters.num_relocations += 1
        self.hand_off(entry, unit)

    def considered(
        self,
        entries: Sequence[Tracked],
        units: Sequence[DecodeUnit],
        here: DecodeUnit | None = None,
    ) -> tuple[Considered, ...]:
        """Return decode units before a decision about ``entries``; nothing if nobody keeps it.

        ``here``: the unit of an answer.
        """
        if not self._state.explains:
            return ()
        placement = self.placement(entries[0].model)
        scores = placement.scores(entries[0] if len(entries) == 1 else None, units, here)
        return tuple(
            Considered(
                u.unit,
                (u.num_requests, u.kv_tokens),
                u.num_free_blocks,
                u.ahead.mean if u.ahead is not None else None,
                score,
            )
            for u, score in zip(units, scores or [()] * len(units), strict=True)
        )

    def explain(
        self,
        question: str,
        considered: tuple[Considered, ...],
        choices: Sequence[Choice[Tracked]],
        num_left: int,
        now: float,
    ) -> None:
        """Publish the placement of one model's requests, and its reasons."""
        if not self._state.explains:
            return
        waits = question == "placement"
        chosen = tuple(
            Chosen(e.key, e.request_id, c.unit, c.score, now - e.since if waits else 0.0)
            for c in choices
            for e in (c.request,)
        )
        rule, model = self._state.settings.placement, choices[0].request.model
        used = constants_of(self.placement(model))
        used += self._state.costs.orders_of(choice.unit.worker_id for choice in choices)
        self._state.explain(
            Decision(question, now, model, rule, considered, chosen, num_left, used)
        )

    # --- results ----------------------------------------------------------------------

    def handoff_ended(self, source: Instance, result: HandoffResult, *, now: float) -> None:
        """Take the result of a handoff: the target, the source or no worker has the request now.

        The target may be an earlier leader's choice, because a source does one move at a time and
        ignores further orders. If that choice was this leader's, too, and the move has failed
        before the source had this leader's order, the source begins anew.
        """
        entry = self._state.tracked.get(result.key)
        target = UnitId(result.target_worker_id, result.target_unit)
        resumed = self._resumed.pop(result.key, None)
        is_resumed = resumed is not None and resumed[:2] == (entry, target)
        if entry is not None and entry.at is not None and is_resumed:
            self._books.order(entry, target)  # it ended before it was ordered again
        is_older = result.fencing_token not in (0, self._state.fencing_token)
        if entry is None or not _is_from(entry, source, result):
            self._end_stray(source, result)
        elif not result.ok and entry.target == target and is_older and not is_resumed:
            return  # the result of this leader's own order comes
        elif result.ok:
            self._moved(entry, target, began_earlier=is_older)
        elif entry.target == target:
            self._failed(source, entry, target, result, now)
        elif entry.target is not None and entry.target.worker_id in self._instances:
            self.hand_off(entry, entry.target)  # it may have ignored the order meanwhile
        elif entry.is_relocating:
            self._failed(source, entry, target, result, now)
        else:
            self._books.retry(entry)
            self._stale = True

    def _end_stray(self, source: Instance, result: HandoffResult) -> None:
        """Stop the target's copy of a request that has ended."""
        if not result.ok:
            return
        source.let_go(result.key)
        is_over = self._state.has_ended(result.key)
        if is_over and result.target_worker_id in self._instances:
            self._state.tell_worker(result.target_worker_id, CancelStream(result.key))

    def _moved(self, entry: Tracked, target: UnitId, *, began_earlier: bool) -> None:
        """Book its arrival; ``began_earlier``: the target has taken it under an earlier leader.

        Then the target has reported it to this leader, or it had ended there before.
        """
        instance = self._instances.get(target.worker_id)
        is_ours = entry.target == target and target.worker_id not in entry.distrusted
        if began_earlier and target.worker_id not in entry.reporters:
            is_ours = False
        if instance is None or not is_ours:
            # It arrived under another leader, and may have ended since.
            if instance is not None:
                self._state.tell_worker(target.worker_id, CancelStream(entry.key))
            self._books.close(entry)
            self._state.lose([entry.key], f"worker {target.worker_id} changed during a handoff")
            return
        self._books.end_move(entry)

    def _failed(
        self,
        source: Instance,
        entry: Tracked,
        target: UnitId,
        result: HandoffResult,
        now: float,
    ) -> None:
        self._state.note(
            "handoff_failed",
            worker_id=source.info.worker_id,
            request_id=entry.request_id,
            detail=f"to unit {target.unit} of {target.worker_id}: {result.message}",
        )
        if entry.is_relocating or source.info.role.decodes:  # the role may have changed recently
            self._books.stay(entry)
            return
        limits = self._state.settings.moves
        until = self._rest_of(entry, target, result, now)
        self._books.retry(entry, target, until)
        self._are_refused |= until == inf
        place = entry.place
        assert isinstance(place, Prefilled), "a handoff that failed is tried again"
        if not result.retriable or place.num_failed >= limits.num_tried + place.num_refused:
            self._give_up(source, entry, target, result)
            return
        self._rest_until = min(self._rest_until, until)
        self._stale = True

    def _rest_of(self, entry: Tracked, target: UnitId, result: HandoffResult, now: float) -> float:
        """Return until when a unit is left out that failed a handoff.

        Where tenants share it, it may be full: then infinite, until its next report. One that runs
        nothing sends none.
        """
        instance = self._instances.get(target.worker_id)
        runs = instance is not None and instance.loads[target.unit].num_running > 0
        may_be_full = result.retriable and runs and self._pools[entry.model].window.are_several
        if may_be_full and _num_refused(entry) < _MOST_REFUSED:
            return inf
        return now + self._state.settings.moves.rest

    def _give_up(
        self, source: Instance, entry: Tracked, target: UnitId, result: HandoffResult
    ) -> None:
        """Drop both copies; the request is computed again from its tokens."""
        if result.retriable:
            self._state.tell_worker(source.info.worker_id, CancelStream(entry.key))
        if target.worker_id in self._instances:
            self._state.tell_worker(target.worker_id, CancelStream(entry.key))
        self._books.close(entry)
        self._state.lose([entry.key], f"its handoff failed: {result.message}")

    def _end_rests(self, now: float) -> None:
        if now < self._rest_until:
            return
        self._stale = True
        self._books.end_rests(now)
        rests = [at for e in self._books.prefilled.values() for at in _rests(e).values()]
        self._rest_until = min(rests, default=inf)


def pool_of(instance: Instance) -> Pool:
    """Return the pool of workers that KV may go to from this one."""
    return instance.info.model, instance.info.kv_kind


def _rests(entry: Tracked) -> Mapping[UnitId, float]:
    assert isinstance(entry.place, Prefilled), "the others are not listed"
    return entry.place.rests


def _is_from(entry: Tracked, source: Instance, result: HandoffResult) -> bool:
    """Return whether a result is about a request that its sender holds."""
    waits_or_moves = isinstance(entry.place, (Prefilled, Moving))
    return entry.worker_id == source.info.worker_id and (waits_or_moves or result.ok)


def _num_refused(entry: Tracked) -> int:
    """Return how often full units have refused a request that waits for one, or moves to one."""
    place = entry.place
    origin = place.origin if isinstance(place, Moving) else place
    return origin.num_refused if isinstance(origin, Prefilled) else 0
