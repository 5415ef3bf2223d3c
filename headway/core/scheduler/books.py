"""The books: the place of every live request. No other file replaces a place.

``TRANSITIONS`` lists all moves between places. A request begins as InWindow (submitted), or as
OnUnit or Moving (adopted from a worker's report). Its end removes it from any place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from math import inf

from headway.cluster import UnitId
from headway.core.scheduler.buckets import BucketCounts
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.places import InWindow, Moving, OnUnit, Place, Prefilled, Tracked
from headway.core.scheduler.state import SchedulerState
from headway.messages import HeldRequest, Placed
from headway.request import StreamKey


class PlaceEvent(Enum):
    """An event that changes where a request is."""

    LEFT_OVER = "a dispatch cycle leaves it over"
    DISPATCHED = "it is dispatched"
    GIVEN_BACK = "its worker gives it back"
    REPORTED = "a worker reports that it has it"
    ARRIVING = "a worker reports that its KV is arriving"
    PREFILLED = "its worker reports that it waits for a handoff"
    ORDERED = "a handoff or a move is ordered"
    SOURCE_FOUND = "the source of an earlier leader's move reports"
    MOVED = "it has moved"
    STAYS = "its move fails, and it keeps running at its source"
    RETRIED = "its handoff fails, and it needs another unit"


TRANSITIONS: Mapping[tuple[type[Place], PlaceEvent], type[Place]] = {
    (InWindow, PlaceEvent.LEFT_OVER): InWindow,
    (InWindow, PlaceEvent.DISPATCHED): OnUnit,
    (InWindow, PlaceEvent.REPORTED): OnUnit,
    (InWindow, PlaceEvent.ARRIVING): Moving,
    (OnUnit, PlaceEvent.GIVEN_BACK): InWindow,
    (OnUnit, PlaceEvent.REPORTED): OnUnit,
    (OnUnit, PlaceEvent.PREFILLED): Prefilled,
    (OnUnit, PlaceEvent.ORDERED): Moving,
    (OnUnit, PlaceEvent.SOURCE_FOUND): Moving,
    (Prefilled, PlaceEvent.REPORTED): OnUnit,
    (Prefilled, PlaceEvent.PREFILLED): Prefilled,
    (Prefilled, PlaceEvent.ORDERED): Moving,
    (Prefilled, PlaceEvent.RETRIED): Prefilled,
    (Moving, PlaceEvent.REPORTED): OnUnit,
    (Moving, PlaceEvent.ORDERED): Moving,
    (Moving, PlaceEvent.SOURCE_FOUND): Moving,
    (Moving, PlaceEvent.MOVED): OnUnit,
    (Moving, PlaceEvent.STAYS): OnUnit,
    (Moving, PlaceEvent.RETRIED): Prefilled,
}


def _put(entry: Tracked, event: PlaceEvent, place: Place) -> None:
    before, after = type(entry.place), type(place)
    assert TRANSITIONS.get((before, event)) is after, f"{event}: {before} to {after}"
    entry.place = place


def leave_over(entry: Tracked) -> None:
    """Note that a waiting request is no longer new in its window."""
    _put(entry, PlaceEvent.LEFT_OVER, InWindow(left_over=True))


class Books:
    """The only writer of places; it also keeps the workers' ledgers in step."""

    def __init__(self, state: SchedulerState, instances: Mapping[str, Instance]) -> None:
        self._state = state
        self._instances = instances
        self.prefilled: dict[StreamKey, Tracked] = {}
        """Requests that wait for a decode unit, longest waiting first."""
        self._buckets: BucketCounts | None = None

    def count_buckets(self) -> BucketCounts:
        """Return what units have by bucket; from the first call on it is kept up."""
        if self._buckets is None:
            self._buckets = BucketCounts(self._recounted)
            for entry in self._state.tracked.values():
                self._buckets.note(entry)
        self._buckets.look()
        return self._buckets

    def _recounted(self, unit: UnitId) -> None:
        instance = self._instances.get(unit.worker_id)
        if instance is not None:
            instance.changed()

    def _put(self, entry: Tracked, event: PlaceEvent, place: Place) -> None:
        _put(entry, event, place)
        if isinstance(place, Prefilled):
            self.prefilled[entry.key] = entry
        else:
            self.prefilled.pop(entry.key, None)
        if self._buckets is not None:
            self._buckets.note(entry)
        self.tell(entry)

    def tell(self, entry: Tracked, *, again: bool = False) -> None:
        """Tell its gateway who has it and who will, if that has changed or is asked ``again``.

        A move whose source has not reported is not told: the gateway knows the source.
        """
        at, target = entry.at, entry.target
        instance = self._instances.get(entry.worker_id)
        if at is None or instance is None:
            return
        role, target_id = instance.info.role, target.worker_id if target is not None else ""
        placed = Placed(
            entry.key, at.worker_id, at.unit, role, target_id, entry.rule, entry.waited_us
        )
        if again or placed != entry.last_placed:
            entry.last_placed = placed
            self._state.tell_gateway(entry.key.gateway_id, placed)

    def tell_source(self, entry: Tracked, instance: Instance, unit: int) -> None:
        """Tell its gateway that a worker which was not to have it has computed it."""
        info = instance.info
        placed = Placed(entry.key, info.worker_id, unit, info.role, "")
        self._state.tell_gateway(entry.key.gateway_id, placed)

    def _leave(self, entry: Tracked) -> None:
        """Remove it from the ledgers of its unit and its target."""
        instance = self._instances.get(entry.worker_id)
        if instance is not None:
            instance.let_go(entry.key)
        self._release(entry)

    def _hold(self, entry: Tracked, unit: UnitId) -> None:
        instance = self._instances[unit.worker_id]
        instance.hold(entry.key, unit.unit, entry.tenant, entry.num_tokens)

    def _release(self, entry: Tracked) -> None:
        target = entry.target
        if target is not None and target.worker_id in self._instances:
            self._instances[target.worker_id].release(entry.key)

    # --- beginning and end ------------------------------------------------------------

    def open(self, entry: Tracked) -> None:
        """Enter a new attempt, wherever it is."""
        self._state.track(entry)
        if self._buckets is not None:
            self._buckets.note(entry)
        self.tell(entry)
        if isinstance(entry.place, OnUnit):
            self._hold(entry, entry.place.unit)
        elif isinstance(entry.place, Moving):
            self._reserve(entry, entry.place.target)

    def close(self, entry: Tracked) -> None:
        """Remove an attempt that is over; a window that holds it removes it separately."""
        self.prefilled.pop(entry.key, None)
        if self._buckets is not None:
            self._buckets.forget(entry)
        self._leave(entry)
        self._state.end(entry.key)

    # --- units ------------------------------------------------------------------------

    def dispatch(self, entry: Tracked, unit: UnitId, rule: str = "") -> None:
        """Move it from the window to a unit, by this rule."""
        entry.rule = rule
        self._put(entry, PlaceEvent.DISPATCHED, OnUnit(unit))
        self._state.changed(entry.key)
        self._hold(entry, unit)

    def give_back(self, entry: Tracked) -> None:
        """Return it from a unit that has not begun it to the window."""
        assert isinstance(entry.place, OnUnit), "only a request on a unit is given back"
        unit = entry.place.unit
        self._instances[unit.worker_id].take_back(entry.key, unit.unit, entry.num_owed_tokens)
        self._put(entry, PlaceEvent.GIVEN_BACK, InWindow())
        self._state.changed(entry.key)

    def find(self, entry: Tracked, unit: UnitId, *, decoding: bool) -> None:
        """Note that it was found on a unit where it was not expected."""
        self._leave(entry)
        self._put(entry, PlaceEvent.REPORTED, OnUnit(unit, adopted=True, decoding=decoding))
        self._state.changed(entry.key)
        self._hold(entry, unit)

    def run_on(self, entry: Tracked, *, decoding: bool) -> None:
        """Note that its worker reports it running or queued, not waiting for a handoff."""
        place = entry.place
        assert isinstance(place, (OnUnit, Prefilled)), "it is at its worker"
        if isinstance(place, Prefilled):
            self._state.changed(entry.key)
        elif place.decoding is decoding:
            return
        self._put(entry, PlaceEvent.REPORTED, OnUnit(place.unit, place.adopted, decoding))

    def prefill(self, entry: Tracked, held: HeldRequest, *, now: float) -> None:
        """Note that its worker holds the KV of its prompt and waits for an order."""
        place = entry.place
        if isinstance(place, OnUnit):
            place = Prefilled(place.unit, place.adopted)
        entry.num_tokens, entry.since = held.num_tokens, now
        entry.predicted_total = held.num_tokens + held.predicted_remaining
        self._put(entry, PlaceEvent.PREFILLED, place)

    # --- moves ------------------------------------------------------------------------

    def _reserve(self, entry: Tracked, target: UnitId) -> None:
        instance = self._instances.get(target.worker_id)
        if instance is not None and target.unit < instance.info.num_units:
            remaining = entry.predicted_remaining
            instance.reserve(entry.key, target.unit, entry.num_tokens, remaining)

    def order(self, entry: Tracked, target: UnitId) -> None:
        """Note that its worker was ordered to send it to a unit."""
        place = entry.place
        assert not isinstance(place, InWindow), "a request that waits is dispatched"
        origin = place.origin if isinstance(place, Moving) else place
        self._put(entry, PlaceEvent.ORDERED, Moving(origin, target))
        self._state.changed(entry.key)
        self._reserve(entry, target)

    def await_arrival(self, entry: Tracked, target: UnitId) -> None:
        """Note an earlier leader's move to a unit, whose source has not reported."""
        self._put(entry, PlaceEvent.ARRIVING, Moving(None, target))
        self._state.changed(entry.key)
        self._reserve(entry, target)

    def find_source(self, entry: Tracked, origin: OnUnit | Prefilled) -> None:
        """Note the source of a move whose target had reported first."""
        target = entry.target or entry.at
        assert target is not None, "its target has reported it"
        self._leave(entry)
        self._put(entry, PlaceEvent.SOURCE_FOUND, Moving(origin, target))
        self._hold(entry, origin.unit)

    def end_move(self, entry: Tracked) -> None:
        """Note that its move has succeeded."""
        place = entry.place
        assert isinstance(place, Moving), "only a move succeeds"
        assert place.origin is not None, "its source has reported it"
        source = self._instances.get(entry.worker_id)
        if source is not None:
            source.let_go(entry.key)
        target = self._instances[place.target.worker_id]
        target.landed(entry.key)
        landed = OnUnit(place.target, place.origin.adopted, decoding=True)
        self._put(entry, PlaceEvent.MOVED, landed)
        self._state.changed(entry.key)
        self._hold(entry, place.target)

    def stay(self, entry: Tracked) -> None:
        """Note that its move has failed and that it keeps running at its source."""
        place = entry.place
        assert isinstance(place, Moving), "only a move fails"
        origin = place.origin
        assert origin is not None, "its source has reported it"
        self._release(entry)
        if isinstance(origin, Prefilled):
            origin = OnUnit(origin.unit, origin.adopted)
        self._put(entry, PlaceEvent.STAYS, origin)
        self._state.changed(entry.key)

    def retry(self, entry: Tracked, failed: UnitId | None = None, until: float = 0.0) -> None:
        """Note a failed handoff: look for another unit and leave ``failed`` out ``until`` then."""
        place = entry.place
        self._release(entry)
        origin = place.origin if isinstance(place, Moving) else place
        assert isinstance(origin, Prefilled), "what runs stays where it is"
        if failed is not None:
            num_failed, num_refused = origin.num_failed + 1, origin.num_refused + (until == inf)
            rests = {**origin.rests, failed: until}
            origin = Prefilled(origin.unit, origin.adopted, num_failed, num_refused, rests)
        if isinstance(place, Moving):
            self._state.changed(entry.key)
        self._put(entry, PlaceEvent.RETRIED, origin)

    def end_rests(self, now: float, worker_id: str = "") -> None:
        """Allow units again whose rest after a failed handoff is over, or ends with this report."""
        for entry in self.prefilled.values():
            place = entry.place
            assert isinstance(place, Prefilled), "the others are not listed"
            rests = {
                unit: at
                for unit, at in place.rests.items()
                if at > now and (at < inf or unit.worker_id != worker_id)
            }
            if len(rests) < len(place.rests):
                entry.place = replace(place, rests=rests)
