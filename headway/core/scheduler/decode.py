"""Prefilled requests: which unit decodes them, and how their handoffs end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from headway.cluster import UnitId
from headway.core.scheduler.events import Chosen, Considered, Decision
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.state import SchedulerState, Stage, Tracked
from headway.cost.buckets import NUM_BUCKETS
from headway.messages import CancelStream, Handoff, HandoffResult, HeldRequest, Placed
from headway.policies import registry
from headway.policies.placement import Choice, DecodeUnit, Placement
from headway.request import StreamKey


class DecodePlacer:
    """Places prefilled requests in batches; who finds no room waits for the next load report."""

    def __init__(self, state: SchedulerState, instances: Mapping[str, Instance]) -> None:
        self._state = state
        self._instances = instances
        self._placements: dict[str, Placement] = {}
        self._waiting: dict[StreamKey, Tracked] = {}
        self._resumed: dict[StreamKey, tuple[Tracked, UnitId]] = {}
        self._rest_until = inf
        self._stale = False

    @property
    def num_waiting(self) -> int:
        """Prefilled requests without a decode unit."""
        return len(self._waiting)

    def num_waiting_by_model(self) -> Mapping[str, int]:
        """The same, of each model."""
        return Counter(entry.model for entry in self._waiting.values())

    @property
    def next_wakeup(self) -> float:
        """When a unit that failed a handoff may be tried again; infinite if none has."""
        return self._rest_until

    # --- coming and going -------------------------------------------------------------

    def retry(self) -> None:
        """Loads have changed, or a unit has come: those that wait may find room now."""
        self._stale = True

    def add(self, entry: Tracked, held: HeldRequest, *, now: float) -> None:
        """Its worker holds the prefilled request's KV, and waits for orders."""
        entry.stage, entry.num_tokens, entry.since = Stage.PREFILLED, held.num_tokens, now
        self._wait(entry)

    def _wait(self, entry: Tracked) -> None:
        self._waiting[entry.key] = entry
        self._stale = True

    def stays(self, entry: Tracked) -> None:
        """Its worker has another role now, and decodes it itself."""
        self._waiting.pop(entry.key, None)
        entry.stage = Stage.PLACED
        self._state.changed(entry.key)

    def remove(self, entry: Tracked) -> None:
        """The request ended, was lost or cancelled: nothing is reserved for it any more."""
        self._waiting.pop(entry.key, None)
        self._resumed.pop(entry.key, None)
        self._release(entry)

    def _release(self, entry: Tracked) -> None:
        target, entry.target = entry.target, None
        if target is not None:
            self._state.changed(entry.key)
        if target is not None and target.worker_id in self._instances:
            self._instances[target.worker_id].release(entry.key)

    # --- placement --------------------------------------------------------------------

    def place(self, *, now: float) -> None:
        """Find units for those that wait."""
        self._end_rests(now)
        self._resume_moves()
        if not self._stale:
            return
        self._stale = False
        for model in sorted({entry.model for entry in self._waiting.values()}):
            entries = [e for e in self._waiting.values() if e.model == model]
            units = self.units(model)
            considered = considered_units(units)
            choices = self.placement(model).place(entries, units)
            for choice in choices:
                self.hand_off(choice.request, choice.unit)
            if choices:
                self._explain(model, considered, choices, len(entries) - len(choices), now)

    def placement(self, model: str) -> Placement:
        """The policy that places a model's requests."""
        placement = self._placements.get(model)
        if placement is None:
            settings = self._state.settings
            placement = registry.make("placement", settings.placement, **settings.placement_params)
            self._placements[model] = placement
        return placement

    def units(self, model: str) -> list[DecodeUnit]:
        """Units that a model's requests may be handed to, as a placement policy sees them."""
        units = [
            unit
            for _, instance in sorted(self._instances.items())
            if instance.takes_decode and instance.info.model == model
            for unit in instance.decode_units()
        ]
        if self.placement(model).reads_buckets:
            self._count_buckets(units)
        return units

    def _count_buckets(self, units: Sequence[DecodeUnit]) -> None:
        """Of all requests that decode on each unit, or are on their way there."""
        by_id = {unit.unit: unit for unit in units}
        for unit in units:
            unit.bucket_counts = [0] * NUM_BUCKETS
        for entry in self._state.tracked.values():
            at = entry.target or UnitId(entry.worker_id, entry.unit)
            decodes = entry.stage in (Stage.PLACED, Stage.MOVING)
            if decodes and at in by_id:
                by_id[at].bucket_counts[entry.bucket] += 1

    def hand_off(self, entry: Tracked, unit: UnitId) -> None:
        """Order the move; an order to go on with one that is under way changes nothing."""
        target = self._instances[unit.worker_id]
        target.reserve(entry.key, unit.unit, entry.num_tokens)
        self._waiting.pop(entry.key, None)
        entry.stage, entry.target = Stage.MOVING, unit
        self._state.changed(entry.key)
        address, token = target.info.address, self._state.fencing_token
        order = Handoff(entry.key, unit.worker_id, address, unit.unit, token)
        self._state.tell_worker(entry.worker_id, order)
        self._state.counters.num_handoffs += 1

    def resume(self, entry: Tracked, unit: UnitId) -> None:
        """An earlier leader had ordered this move: go on with it once all workers are known."""
        self._resumed[entry.key] = entry, unit

    def _resume_moves(self) -> None:
        """The order is given again: a source that has heard it already ignores it."""
        resumed, self._resumed = self._resumed, {}
        for entry, unit in resumed.values():
            target = self._instances.get(unit.worker_id)
            known = target is not None and target.takes_decode and unit.unit < target.info.num_units
            moves = entry.relocating if entry.stage is Stage.PLACED else True
            if known and moves and entry.stage in (Stage.PLACED, Stage.PREFILLED):
                self.hand_off(entry, unit)
            else:
                entry.relocating = False

    def relocate(self, entry: Tracked, unit: UnitId, *, now: float) -> None:
        """Move a request that runs; it goes on at its source until it can leave."""
        entry.relocating, entry.moved_at = True, now
        self._state.counters.num_relocations += 1
        self.hand_off(entry, unit)

    def _explain(
        self,
        model: str,
        considered: tuple[Considered, ...],
        choices: Sequence[Choice[Tracked]],
        num_left: int,
        now: float,
    ) -> None:
        chosen = tuple(
            Chosen(c.request.key, c.request.request_id, c.unit, c.score, now - c.request.since)
            for c in choices
        )
        rule = self._state.settings.placement
        self._state.explain(Decision("placement", now, model, rule, considered, chosen, num_left))

    # --- results ----------------------------------------------------------------------

    def handoff_ended(self, source: Instance, result: HandoffResult, *, now: float) -> None:
        """The target runs the request, or the source still has it, or nobody does.

        The target may be an earlier leader's choice: the source does one move at a time, and
        ignores orders meanwhile.
        """
        entry = self._state.tracked.get(result.key)
        target = UnitId(result.target_worker_id, result.target_unit)
        if self._resumed.pop(result.key, None) == (entry, target) and entry is not None:
            entry.stage, entry.target = Stage.MOVING, target  # it ended before it was ordered again
            self._waiting.pop(entry.key, None)
        source_has_it = (
            entry is not None
            and entry.worker_id == source.info.worker_id
            and (entry.stage in (Stage.PREFILLED, Stage.MOVING) or result.ok)
        )
        if entry is None or not source_has_it:
            self._end_stray(source, result)
        elif result.ok:
            self._moved(source, entry, target)
        elif entry.target == target:
            self._failed(source, entry, target, result, now)
        elif entry.target is not None and entry.target.worker_id in self._instances:
            self.hand_off(entry, entry.target)  # it may have ignored the order meanwhile
        elif entry.relocating:
            self._failed(source, entry, target, result, now)
        else:
            self._release(entry)
            entry.stage = Stage.PREFILLED
            self._wait(entry)

    def _end_stray(self, source: Instance, result: HandoffResult) -> None:
        """Nobody waits for this move any more: whoever has the request is to stop."""
        if not result.ok:
            return
        source.let_go(result.key)
        is_over = self._state.has_ended(result.key)
        if is_over and result.target_worker_id in self._instances:
            self._state.tell_worker(result.target_worker_id, CancelStream(result.key))

    def _moved(self, source: Instance, entry: Tracked, target: UnitId) -> None:
        source.let_go(entry.key)
        instance = self._instances.get(target.worker_id)
        is_ours = entry.target == target and target.worker_id not in entry.distrusted
        if instance is None or not is_ours:
            # It arrived in another life or under another leader, and may have ended since.
            if instance is not None:
                self._state.tell_worker(target.worker_id, CancelStream(entry.key))
            self.remove(entry)
            self._state.lose([entry.key], f"worker {target.worker_id} changed during a handoff")
            return
        entry.target, entry.relocating = None, False
        instance.landed(entry.key)
        entry.stage, entry.worker_id, entry.unit = Stage.PLACED, target.worker_id, target.unit
        entry.is_decoding = True
        self._state.changed(entry.key)
        instance.hold(entry.key)
        placed = Placed(entry.key, target.worker_id, target.unit, instance.info.role)
        self._state.tell_gateway(entry.key.gateway_id, placed)

    def _failed(
        self,
        source: Instance,
        entry: Tracked,
        target: UnitId,
        result: HandoffResult,
        now: float,
    ) -> None:
        self._release(entry)
        self._state.counters.num_failed_handoffs += 1
        self._state.note(
            "handoff_failed",
            worker_id=source.info.worker_id,
            request_id=entry.request_id,
            detail=f"to unit {target.unit} of {target.worker_id}: {result.message}",
        )
        if entry.relocating or source.info.role.decodes:  # which may be its role of late
            entry.stage, entry.relocating = Stage.PLACED, False
            return
        entry.stage = Stage.PREFILLED
        entry.num_failed_handoffs += 1
        tries_left = entry.num_failed_handoffs < self._state.settings.moves.num_tried
        if result.retriable and tries_left:
            entry.rests[target] = now + self._state.settings.moves.rest
            self._rest_until = min(self._rest_until, entry.rests[target])
            self._wait(entry)
            return
        self._give_up(source, entry, target, result)

    def _give_up(
        self, source: Instance, entry: Tracked, target: UnitId, result: HandoffResult
    ) -> None:
        """The request is computed again from its tokens; nobody goes on with what they have."""
        source.let_go(entry.key)
        if result.retriable:
            self._state.tell_worker(source.info.worker_id, CancelStream(entry.key))
        if target.worker_id in self._instances:
            self._state.tell_worker(target.worker_id, CancelStream(entry.key))
        self._state.lose([entry.key], f"its handoff failed: {result.message}")

    def _end_rests(self, now: float) -> None:
        if now < self._rest_until:
            return
        self._stale = True
        for entry in self._waiting.values():
            entry.rests = {unit: at for unit, at in entry.rests.items() if at > now}
        rests = (at for entry in self._waiting.values() for at in entry.rests.values())
        self._rest_until = min(rests, default=inf)


def considered_units(units: Sequence[DecodeUnit]) -> tuple[Considered, ...]:
    """Decode units, as a decision remembers them."""
    return tuple(
        Considered(u.unit, (u.num_requests, u.kv_tokens), u.num_free_blocks) for u in units
    )
