"""Tenants whose requests the units have, and the room that others find beside them.

A unit's worker computes the prompts of whoever was served least first, and gives it blocks that
others hold. So for such a tenant the prompts of those who were served more take no room, nor do
their blocks, and it need not wait until they are computed or have ended.

Nor does it wait for whoever has more than a chunk of prompts on a unit, a newcomer's credit or not:
the worker computes these beside others' (``fair_chunk``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil, inf
from typing import NamedTuple, Protocol

from headway.cluster import UnitId, UnitLoad, WorkerInfo
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.places import OnUnit, Tracked
from headway.core.scheduler.state import SchedulerState
from headway.core.scheduler.windows import TenantWindows, cost_of, within
from headway.core.token_counters import TokenCounters
from headway.policies.dispatch import InstanceLoad
from headway.policies.packing import Assigned, Room
from headway.request import StreamKey

_FEW = 64


class Pack(Protocol):
    """``Packing.pack``, with all but the requests and the rooms said."""

    def __call__(
        self, legacy: Sequence[Tracked], new: Sequence[Tracked], rooms: Sequence[Room]
    ) -> list[Assigned[Tracked]]:
        """Return the assigned requests."""


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


class _ServedSums:
    """Amounts of tenants, of those served least first: for many who ask, sorted once."""

    def __init__(self, amounts: Iterable[tuple[str, int]], counters: TokenCounters) -> None:
        ordered = sorted((counters.of(name), amount) for name, amount in amounts)
        self._counters = [counter for counter, _ in ordered]
        self._sums = [0, *accumulate(amount for _, amount in ordered)]

    def before(self, counter: float) -> int:
        """Return what those have who were served no more."""
        return self._sums[bisect_right(self._counters, counter)]

    def left_of(self, total: int, counter: float) -> int:
        """Return the rest of a total; 0 if nobody was served more."""
        return 0 if self.above(counter) == inf else total - self.before(counter)

    def above(self, counter: float) -> float:
        """Return the least counter of those who were served more; infinite for none."""
        place = bisect_right(self._counters, counter)
        return self._counters[place] if place < len(self._counters) else inf


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

        A tenant that was served less finds no less room than another, but for those who flood.
        """
        counter, debts = self._counters.of(tenant), self._debts(unit)
        if not _floods(debts.get(tenant), chunk_tokens):
            debts = _without_floods(debts, chunk_tokens)
        return chunk_tokens - sum(
            debt.owed for name, debt in debts.items() if self._counters.of(name) <= counter
        )

    def floods(self, tenant: str, instance: Instance) -> bool:
        """Return whether a unit has more than a chunk of a tenant's prompts to compute."""
        info = instance.info
        units = (UnitId(info.worker_id, unit) for unit in range(info.num_units))
        return any(_floods(self._debts(unit).get(tenant), info.turn_tokens) for unit in units)

    # --- blocks -------------------------------------------------------------------------

    def num_blocks(self, tenant: str, instance: Instance, unit: int) -> int:
        """Return the blocks of a unit that nobody claims, but for those who were served more.

        The worker takes blocks from these for the tenant. 0 if there are none.
        """
        claims, counter = instance.claims(unit), self._counters.of(tenant)
        others = [claim for name, claim in claims.items() if self._counters.of(name) <= counter]
        return instance.info.num_blocks - sum(others) if len(others) < len(claims) else 0

    def num_even(self, tenant: str, instance: Instance, unit: int) -> int:
        """Return the blocks that a tenant lacks to its part, if all on a unit had the same.

        What prompts claim, and in proportion outputs: they are charged at their ends alone.
        """
        claims, total = instance.claims(unit), instance.info.num_blocks
        num_claimed, num_tenants = sum(claims.values()), len(claims.keys() | {tenant})
        if num_tenants < 2:
            return 0
        num_held = max(num_claimed, total - max(0, instance.num_free_blocks(unit)))
        return total // num_tenants - ceil(claims.get(tenant, 0) * num_held / num_claimed)

    def with_blocks(self, load: InstanceLoad, entry: Tracked, instance: Instance) -> InstanceLoad:
        """Return a load with the blocks that a request's tenant finds, if it needs them."""
        if all(unit.free_tokens >= entry.num_tokens for unit in load.units):
            return load
        units = []
        for unit in load.units:
            room = instance.room(unit.unit.unit)
            num_blocks = self.num_blocks(entry.tenant, instance, unit.unit.unit)
            free = (num_blocks - room.num_spare_blocks) * room.block_size
            units.append(unit._replace(free_tokens=max(unit.free_tokens, free)))
        free = max(unit.free_tokens for unit in units)
        if free < entry.num_tokens:
            return load
        return replace(load, units=units, free_tokens=free, has_room=True)

    # --- packing ------------------------------------------------------------------------

    def pack(
        self,
        entries: Iterable[Tracked],
        rooms: Sequence[Room],
        instance: Instance,
        pack: Pack,
        *,
        capped: bool,
    ) -> list[Assigned[Tracked]]:
        """Assign requests, in turn, that have more room on a unit than others find.

        What yields by its class waits for C_avail. ``capped``: C_avail counts.
        """
        by_tenant: dict[str, list[Tracked]] = {}
        for entry in entries:
            if not entry.yields:
                by_tenant.setdefault(entry.tenant, []).append(entry)
        assigned: list[Assigned[Tracked]] = []
        info, served = instance.info, self._counters
        chunk = info.turn_tokens
        of_units: list[Mapping[str, _Debt]] = []
        debts: list[_ServedSums] = []
        calm: list[_ServedSums] = []
        claims: list[_ServedSums] = []
        if capped and by_tenant:
            of_units = [self._debts(room.unit) for room in rooms]
            debts = [_owed(each, served) for each in of_units]
            calm = [_owed(_without_floods(each, chunk), served) for each in of_units]
        for tenant, those in by_tenant.items():
            counter, owed = served.of(tenant), [0] * len(rooms)
            if capped:
                free = (
                    chunk - (each if _floods(on.get(tenant), chunk) else others).before(counter)
                    for on, each, others in zip(of_units, debts, calm, strict=True)
                )
                owed = [max(0, n - r.capacity) for n, r in zip(free, rooms, strict=True)]
            for room, num_tokens in zip(rooms, owed, strict=True):
                if those and num_tokens:
                    fitting = within(those, room.capacity + num_tokens)
                    found = _pack_wider(pack, fitting, [room], [num_tokens], [0])
                    assigned += found
                    taken = {each.request.key for each in found}
                    those = [entry for entry in those if entry.key not in taken]
            needy = [e for e in those if not any(room.fits(e.num_tokens) for room in rooms)]
            if needy:
                if not claims:
                    by_unit = map(instance.claims, range(info.num_units))
                    claims = [_ServedSums(each.items(), served) for each in by_unit]
                needy = list(_in_lead(counter, needy, claims))
            if capped and needy:
                capacity = sum(max(0, r.capacity + n) for r, n in zip(rooms, owed, strict=True))
                needy = within(needy, capacity)
            if needy:
                all_claims = (claims[room.unit.unit] for room in rooms)
                left = (each.left_of(info.num_blocks, counter) for each in all_claims)
                more = [max(0, n - r.num_free_blocks) for n, r in zip(left, rooms, strict=True)]
                assigned += _pack_wider(pack, needy, rooms, owed, more)
        return assigned

    def _debts(self, unit: UnitId) -> Mapping[str, _Debt]:
        found = self._units.get(unit)
        if found is None:
            return {}
        if found.has_report:
            found.sweep(unit, self._state.tracked)
        return found.debts


def _floods(debt: _Debt | None, chunk_tokens: int) -> bool:
    """Return whether the worker computes a tenant's prompts beside others' alone."""
    return debt is not None and debt.owed > chunk_tokens


def _without_floods(debts: Mapping[str, _Debt], chunk_tokens: int) -> Mapping[str, _Debt]:
    return {name: debt for name, debt in debts.items() if not _floods(debt, chunk_tokens)}


def _owed(debts: Mapping[str, _Debt], served: TokenCounters) -> _ServedSums:
    return _ServedSums([(name, debt.owed) for name, debt in debts.items()], served)


def _in_lead(
    counter: float, entries: Iterable[Tracked], claims: Iterable[_ServedSums]
) -> Iterator[Tracked]:
    """Yield requests until their tenant is served as much as another that has some here."""
    ahead = min(each.above(counter) for each in claims)
    left = ahead - counter if ahead < inf else 0.0
    for entry in entries:
        if left <= 0:
            return
        yield entry
        left -= cost_of(entry) / entry.share


def _pack_wider(
    pack: Pack,
    entries: Sequence[Tracked],
    rooms: Sequence[Room],
    tokens: Sequence[int],
    blocks: Sequence[int],
) -> list[Assigned[Tracked]]:
    """Assign requests as if each unit had so many tokens and blocks more."""
    for room, num_tokens, num_blocks in zip(rooms, tokens, blocks, strict=True):
        room.capacity += num_tokens
        room.num_free_blocks += num_blocks
    assigned = pack((), entries, rooms)
    for room, num_tokens, num_blocks in zip(rooms, tokens, blocks, strict=True):
        room.capacity -= num_tokens
        room.num_free_blocks -= num_blocks
    return assigned


def _is_prompt_on(entry: Tracked, unit: UnitId) -> bool:
    place = entry.place
    return isinstance(place, OnUnit) and place.unit == unit and not place.decoding
