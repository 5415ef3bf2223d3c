"""Tenants whose prompts the units have queued, and the room that others find beside them.

A unit's worker computes the prompts of whoever was served least first. So for such a tenant the
prompts of those who were served more take no room, and it need not wait until they are computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headway.cluster import UnitId, WorkerInfo
from headway.core.scheduler.places import OnUnit, Tracked
from headway.core.scheduler.state import SchedulerState
from headway.core.scheduler.windows import TenantWindows, within
from headway.policies.packing import Assigned, Packing, Room
from headway.request import StreamKey


class _Queued:
    """The debt of one unit to tenants when its worker last reported, and what was sent to it since.

    Sums, because thousands may be queued while each that arrives asks for them.
    """

    def __init__(self, entries: Iterable[Tracked]) -> None:
        self.owed: Counter[str] = Counter()
        """Prompt tokens, by tenant."""
        self.charged: dict[str, float] = {}
        """Weighted tokens over its share, by tenant."""
        for entry in entries:
            self.add(entry)

    def add(self, entry: Tracked) -> None:
        """Count another request."""
        name = entry.tenant
        self.owed[name] += entry.num_owed_tokens
        self.charged[name] = self.charged.get(name, 0.0) + entry.charged / entry.share


class UnitTenants:
    """Requests of one model that were dispatched and are not known to be prefilled, by unit."""

    def __init__(self, state: SchedulerState, windows: TenantWindows) -> None:
        self._state = state
        self._windows = windows
        self._counters = windows.counters
        self._sent: dict[UnitId, dict[StreamKey, Tracked]] = {}
        self._sums: dict[UnitId, _Queued] = {}

    def sent(self, assigned: Iterable[Assigned[Tracked]]) -> None:
        """Note a dispatch."""
        for each in assigned:
            self._sent.setdefault(each.unit, {})[each.request.key] = each.request
            if each.unit in self._sums:
                self._sums[each.unit].add(each.request)

    def reported(self, info: WorkerInfo) -> None:
        """Forget who is computed or gone, after a worker's report."""
        for number in range(info.num_units):
            unit = UnitId(info.worker_id, number)
            self._sums.pop(unit, None)
            if unit in self._sent and not self._queued(unit):
                del self._sent[unit]

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self._sent = {
            unit: those for unit, those in self._sent.items() if unit.worker_id != worker_id
        }
        self._sums.clear()

    def charged(self) -> Mapping[str, float]:
        """Return what tenants were charged for prompts that are not computed yet, over shares."""
        found: dict[str, float] = {}
        for unit in self._sent if self._windows.are_several else ():
            for tenant, charged in self._sum(unit).charged.items():
                found[tenant] = found.get(tenant, 0.0) + charged
        return found

    def room(self, tenant: str, unit: UnitId, chunk_tokens: int) -> int:
        """Return the tokens of a unit's chunk before those of tenants that were served more.

        A tenant that was served less finds no less room than another.
        """
        counter = self._counters.of(tenant)
        return chunk_tokens - sum(
            num_tokens
            for name, num_tokens in self._sum(unit).owed.items()
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

    def _sum(self, unit: UnitId) -> _Queued:
        found = self._sums.get(unit)
        if found is None:
            found = self._sums[unit] = _Queued(self._queued(unit).values())
        return found

    def _queued(self, unit: UnitId) -> dict[StreamKey, Tracked]:
        """Return who is still queued there, and forget the others."""
        sent = self._sent.get(unit, {})
        for key, entry in list(sent.items()):
            if self._state.tracked.get(key) is not entry or not _is_prompt_on(entry, unit):
                del sent[key]
        return sent


def _is_prompt_on(entry: Tracked, unit: UnitId) -> bool:
    place = entry.place
    return isinstance(place, OnUnit) and place.unit == unit and not place.decoding
