"""Tenants whose prompts the units have queued, and the room that others find beside them.

A unit's worker computes the prompts of whoever was served least first. So for such a tenant the
prompts of those who were served more take no room, and it need not wait until they are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headway.cluster import UnitId, UnitLoad, WorkerInfo
from headway.core.scheduler.places import OnUnit, Tracked
from headway.core.scheduler.state import SchedulerState
from headway.core.scheduler.windows import TenantWindows, within
from headway.policies.packing import Assigned, Packing, Room
from headway.request import StreamKey

_FEW = 64


class _Debt(NamedTuple):
    """A unit's debt to a tenant: prompt tokens, and what it was charged for them over its share."""

    num_requests: int = 0
    owed: int = 0
    charged: float = 0.0

    def plus(self, other: _Debt, sign: int = 1) -> _Debt:
        """Return both together, or with sign -1 the rest of one without the other."""
        return _Debt(
            self.num_requests + sign * other.num_requests,
            self.owed + sign * other.owed,
            self.charged + sign * other.charged,
        )


class _Queued:
    """The debts of one unit when its worker last reported, and of what was sent to it since.

    Sums that are kept up, because thousands may be queued while each that arrives asks for them.
    """

    def __init__(self) -> None:
        self.debts: dict[str, _Debt] = {}
        """By tenant; of those who have requests here."""
        self._entries: dict[StreamKey, tuple[Tracked, _Debt]] = {}
        self.most = _FEW
        """Requests from which on a report has them looked through, though nobody asks for sums."""
        self.has_report = False
        """True if a report has come since they were looked through."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Tracked) -> None:
        """Count another request."""
        self._take_out(entry.key)
        own = _Debt(1, entry.num_owed_tokens, entry.charged / entry.share)
        self._entries[entry.key] = entry, own
        self.debts[entry.tenant] = self.debts.get(entry.tenant, _Debt()).plus(own)

    def _take_out(self, key: StreamKey) -> None:
        entry, own = self._entries.pop(key, (None, _Debt()))
        if entry is None:
            return
        sums = self.debts.pop(entry.tenant)
        if sums.num_requests > 1:
            self.debts[entry.tenant] = sums.plus(own, -1)

    def sweep(self, unit: UnitId, tracked: Mapping[StreamKey, Tracked]) -> None:
        """Forget who is computed or gone."""
        self.has_report = False
        for key, (entry, _) in list(self._entries.items()):
            if tracked.get(key) is not entry or not _is_prompt_on(entry, unit):
                self._take_out(key)
        self.most = _FEW + 2 * len(self._entries)


class UnitTenants:
    """Requests of one model that were dispatched and are not known to be prefilled, by unit."""

    def __init__(self, state: SchedulerState, windows: TenantWindows) -> None:
        self._state = state
        self._windows = windows
        self._counters = windows.counters
        self._units: dict[UnitId, _Queued] = {}

    def sent(self, assigned: Iterable[Assigned[Tracked]]) -> None:
        """Note a dispatch."""
        for each in assigned:
            self._units.setdefault(each.unit, _Queued()).add(each.request)

    def reported(self, info: WorkerInfo, loads: Iterable[UnitLoad]) -> None:
        """Forget who is computed or gone after a worker's report: at once where few are queued."""
        queued = {load.unit: load.queued_prefill_tokens for load in loads}
        for number in range(info.num_units):
            unit = UnitId(info.worker_id, number)
            those = self._units.get(unit)
            if those is None:
                continue
            those.has_report = True
            if len(those) > those.most or not queued.get(number):
                those.sweep(unit, self._state.tracked)
            if not those:
                del self._units[unit]

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self._units = {
            unit: those for unit, those in self._units.items() if unit.worker_id != worker_id
        }

    def charged(self) -> Mapping[str, float]:
        """Return what tenants were charged for prompts that are not computed yet, over shares."""
        found: dict[str, float] = {}
        for unit in self._units if self._windows.are_several else ():
            for tenant, debt in self._debts(unit).items():
                found[tenant] = found.get(tenant, 0.0) + debt.charged
        return found

    def room(self, tenant: str, unit: UnitId, chunk_tokens: int) -> int:
        """Return the tokens of a unit's chunk before those of tenants that were served more.

        A tenant that was served less finds no less room than another.
        """
        counter = self._counters.of(tenant)
        return chunk_tokens - sum(
            debt.owed
            for name, debt in self._debts(unit).items()
            if name == tenant or self._counters.of(name) <= counter
        )

    def pack(
        self,
        entries: Iterable[Tracked],
        rooms: Sequence[Room],
        chunk: int,
        packing: Packing,
        own: Mapping[StreamKey, UnitId],
    ) -> list[Assigned[Tracked]]:
        """Assign requests, in turn, that have more room than C_avail on a unit.

        What yields by its class waits for C_avail. ``own``: as packing takes it.
        """
        by_tenant: dict[str, list[Tracked]] = {}
        for entry in entries:
            if not entry.yields:
                by_tenant.setdefault(entry.tenant, []).append(entry)
        assigned: list[Assigned[Tracked]] = []
        for tenant, those in by_tenant.items():
            for room in rooms:
                owed = self.room(tenant, room.unit, chunk) - room.capacity
                if not those or owed <= 0:
                    continue
                room.capacity += owed
                found = packing.pack((), within(those, room.capacity), [room], own=own)
                room.capacity -= owed
                assigned += found
                taken = {each.request.key for each in found}
                those = [entry for entry in those if entry.key not in taken]
        return assigned

    def _debts(self, unit: UnitId) -> Mapping[str, _Debt]:
        found = self._units.get(unit)
        if found is None:
            return {}
        if found.has_report:
            found.sweep(unit, self._state.tracked)
        return found.debts


def _is_prompt_on(entry: Tracked, unit: UnitId) -> bool:
    place = entry.place
    return isinstance(place, OnUnit) and place.unit == unit and not place.decoding
