"""Beginnings of prompts that each DP unit holds, on the device and in host memory.

This is the leader's own index: noted at dispatch, refreshed when a request ends, and named by a
worker's snapshot. The order of last use is the workers' own, so a unit holds the last of what fits
into its KV. A wrong belief costs some balance, and never a token: a worker's own prefix cache
decides what is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.blocks import BlockHash, num_waypoints, waypoint, waypoint_names
from headway.cluster import UnitId, WorkerInfo
from headway.core.scheduler.places import Tracked
from headway.core.scheduler.prefix_figures import DEVICE, HOST, PrefixFigures, TierFigures
from headway.messages import Admission, CachedPrefixes
from headway.policies.dispatch.prefix_hits import NO_HIT, Hit
from headway.request import Request

MOST_FALSE_CLAIMS = 3
"""Claims of a worker's snapshot that may fail before none is believed until it joins again."""
_Group = tuple[int, int]
"""Tokens of a beginning, and a bit for each unit that holds so much of the prompt and no more."""


class _Tier:
    """The names that units hold in one kind of memory, each unit up to its own size."""

    def __init__(self) -> None:
        self.holders: dict[BlockHash, int] = {}
        """A bit for each unit that holds a name."""
        self._held: dict[int, dict[BlockHash, int]] = {}  # tokens by name, oldest use first
        self._rooms: dict[int, int] = {}  # tokens that still fit
        self.num_expected = self.num_reported = 0
        self.num_changes = 0
        """Times that a unit joined, came to hold a name, or no longer held one."""

    def figures(self, tier: str) -> TierFigures:
        """Return its size and its hits so far."""
        return TierFigures(tier, len(self.holders), self.num_expected, self.num_reported)

    def join(self, bit: int, num_tokens: int) -> None:
        """Add a unit that holds this many tokens at most."""
        self._held[bit], self._rooms[bit] = {}, num_tokens
        self.num_changes += 1

    def leave(self, bit: int) -> None:
        """Forget a unit with all that it holds."""
        self.drop(bit, self._held.pop(bit, {}))
        self._rooms.pop(bit, None)
        self.num_changes += 1

    def note(self, bit: int, names: Sequence[BlockHash]) -> None:
        """Note that a unit uses a prompt now; a longer beginning is forgotten first."""
        number = len(names)
        for name in reversed(names):
            self.hold(bit, name, number)
            number -= 1
        self._shrink(bit)

    def hold(self, bit: int, name: BlockHash, number: int) -> None:
        """Note the name of a waypoint, without making room."""
        held = self._held[bit]
        size = held.pop(name, None)
        if size is None:
            size = waypoint(number) - waypoint(number - 1)
            self._rooms[bit] -= size
            self.holders[name] = self.holders.get(name, 0) | 1 << bit
            self.num_changes += 1
        held[name] = size

    def _shrink(self, bit: int) -> None:
        missing, oldest = -self._rooms[bit], list[BlockHash]()
        if missing <= 0:
            return
        for name, size in self._held[bit].items():
            if missing <= 0:
                break
            oldest.append(name)
            missing -= size
        self.drop(bit, oldest)

    def names_of(self, bit: int) -> Sequence[BlockHash]:
        """Return all names that a unit holds."""
        return tuple(self._held.get(bit, ()))

    def drop(self, bit: int, names: Iterable[BlockHash]) -> None:
        """Forget names that a unit no longer holds."""
        held, holders = self._held.get(bit, {}), self.holders
        for name in names:
            size = held.pop(name, 0)
            self._rooms[bit] += size
            self.num_changes += size > 0
            left = holders.get(name, 0) & ~(1 << bit)
            if left:
                holders[name] = left
            else:
                holders.pop(name, None)

    def groups(self, names: Sequence[BlockHash]) -> list[_Group]:
        """Return who holds how much of a prompt, the longest beginnings first.

        Bisected for each group of units: whoever holds a name holds those before it.
        """
        groups: list[_Group] = []
        holders, number, stop = self.holders, 0, len(names)
        group = holders.get(names[0], 0) if names else 0
        while group:
            low, high = number, stop - 1  # the last waypoint that the whole group holds
            while low < high:
                middle = (low + high + 1) // 2
                if holders.get(names[middle], 0) & group == group:
                    low = middle
                else:
                    high = middle - 1
            number = low + 1
            further = holders.get(names[number], 0) & group if number < stop else 0
            if group != further:
                groups.append((waypoint(number), group & ~further))
            group = further
        groups.reverse()
        return groups

    def num_held(self, names: Sequence[BlockHash], bit: int) -> int:
        """Return how many of a prompt's waypoints a unit holds."""
        low, high, holders = 0, len(names), self.holders
        while low < high:
            middle = (low + high) // 2
            if holders.get(names[middle], 0) >> bit & 1:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(slots=True)
class IndexMatches:
    """The units that hold a beginning of one prompt, the longest first."""

    _units: Sequence[UnitId | None]
    _bits: Mapping[UnitId, int]
    _active: int
    _anywhere: int
    _device: Sequence[_Group]
    _host: Sequence[_Group]
    _among: Collection[str] | None = None

    def allows(self, unit: UnitId) -> bool:
        """Return whether the request may go to a unit."""
        return self._among is None or unit.worker_id in self._among

    def hit(self, unit: UnitId) -> Hit:
        """Return what a unit holds of it."""
        bit = self._bits.get(unit)
        if bit is None:
            return NO_HIT
        on_device = anywhere = 0
        for num_tokens, group in self._device:
            if group >> bit & 1:
                on_device = num_tokens
                break
        for num_tokens, group in self._host:
            if group >> bit & 1:
                anywhere = num_tokens
                break
        return Hit(on_device, anywhere - on_device if anywhere > on_device else 0)

    def holds(self, unit: UnitId) -> bool:
        """Return whether a unit holds any of it."""
        return unit in self._bits and bool(self._anywhere >> self._bits[unit] & 1)

    def holders(self, most: int) -> list[UnitId]:
        """Return up to so many units that hold a beginning."""
        holders: dict[UnitId, None] = {}
        for _, group in (*self._device, *self._host):
            for unit in self._members(group & self._active):
                if len(holders) >= most:
                    return list(holders)
                holders[unit] = None
        return list(holders)

    def _members(self, group: int) -> Iterator[UnitId]:
        while group:
            lowest = group & -group
            group ^= lowest
            unit = self._units[lowest.bit_length() - 1]
            assert unit is not None, "only units that are there are active"
            yield unit

    @property
    def longest(self) -> int:
        """The most tokens that a unit holds."""
        groups = (*self._device, *self._host)
        return max([n for n, group in groups if group & self._active], default=0)

    @property
    def shortest(self) -> int:
        """The fewest tokens that a unit holds; 0 if one holds none."""
        left, least = self._active, self.longest
        for num_tokens, group in sorted((*self._device, *self._host), reverse=True):
            if left & group:
                left &= ~group
                least = num_tokens
        return 0 if left else least


class Prefixes:
    """The index of one model's units. Names have the salts in them (``headway.blocks``)."""

    def __init__(self) -> None:
        self._bits: dict[UnitId, int] = {}
        self._units: list[UnitId | None] = []
        self._active = 0
        self._device, self._host = _Tier(), _Tier()
        self._claimed: dict[str, set[BlockHash]] = {}
        self._num_false: dict[str, int] = {}
        self.num_bad_reports = 0
        """Reported hits and names that cannot be, and were dropped."""
        self._num_claims = self._num_failed = 0

    @property
    def version(self) -> Hashable:
        """A value that differs once ``matches`` may return other units."""
        return self._active, self._device.num_changes, self._host.num_changes

    @property
    def figures(self) -> PrefixFigures:
        """The size of the index, its hits and its errors."""
        tiers = self._device.figures(DEVICE), self._host.figures(HOST)
        return PrefixFigures(tiers, self._num_claims, self._num_failed, self.num_bad_reports)

    @property
    def num_names(self) -> int:
        """Names that it knows."""
        return len(self._device.holders) + len(self._host.holders)

    # --- units ------------------------------------------------------------------------

    def join(self, info: WorkerInfo) -> None:
        """Add a worker's units that take prompts; those it knows are active again."""
        for number in range(info.num_units):
            unit = UnitId(info.worker_id, number)
            if unit not in self._bits:
                self._add(unit, info)
            self._active |= 1 << self._bits[unit]

    def _add(self, unit: UnitId, info: WorkerInfo) -> None:
        if None in self._units:
            bit = self._units.index(None)
            self._units[bit] = unit
        else:
            bit = len(self._units)
            self._units.append(unit)
        self._bits[unit] = bit
        self._device.join(bit, info.num_blocks * info.block_size)
        self._host.join(bit, info.num_host_blocks * info.block_size)

    def rest(self, worker_id: str) -> None:
        """Leave out a worker that takes no prompts for now; what it holds is kept."""
        for unit, bit in self._bits.items():
            if unit.worker_id == worker_id:
                self._active &= ~(1 << bit)

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone, and its caches."""
        self.rest(worker_id)
        for unit in [unit for unit in self._bits if unit.worker_id == worker_id]:
            bit = self._bits.pop(unit)
            self._device.leave(bit)
            self._host.leave(bit)
            self._units[bit] = None
        self._claimed.pop(worker_id, None)
        self._num_false.pop(worker_id, None)

    # --- what is asked ----------------------------------------------------------------

    def matches(self, entry: Tracked, among: Collection[str] | None = None) -> IndexMatches | None:
        """Return who holds beginnings of its prompt; None if nobody does.

        ``among``: the only workers that it may go to, None for any. With them it is not None.
        """
        names, active = _names(entry), self._active
        first = names[0] if names else None
        anywhere = self._device.holders.get(first, 0) | self._host.holders.get(first, 0)
        if among is not None:
            active &= self._bits_of(among)
            anywhere &= active
        elif not anywhere & active:
            return None
        device, host = self._device.groups(names), self._host.groups(names)
        return IndexMatches(self._units, self._bits, active, anywhere, device, host, among)

    def _bits_of(self, worker_ids: Collection[str]) -> int:
        """Return the bits of all units of workers."""
        return sum(1 << bit for unit, bit in self._bits.items() if unit.worker_id in worker_ids)

    def held_tokens(self, request: Request, units: Iterable[UnitId]) -> list[int]:
        """Return how many tokens of a prompt units hold on their devices."""
        names = waypoint_names(request.prompt_token_ids, request.cache_salt, request.adapter)
        bits = (self._bits.get(unit) for unit in units)
        return [0 if b is None else waypoint(self._device.num_held(names, b)) for b in bits]

    def hit(self, entry: Tracked, unit: UnitId) -> Hit:
        """Return what a unit holds of its prompt."""
        bit, names = self._bits.get(unit), _names(entry)
        if bit is None or not names:
            return NO_HIT
        on_device = waypoint(self._device.num_held(names, bit))
        in_host = waypoint(self._host.num_held(names, bit))
        return Hit(on_device, max(0, in_host - on_device))

    # --- what is learned --------------------------------------------------------------

    def dispatched(self, entry: Tracked, unit: UnitId) -> Hit:
        """Note a dispatch; return what the unit is expected to hold of the prompt."""
        hit = self.hit(entry, unit)
        self._device.num_expected += hit.num_device_tokens
        self._host.num_expected += hit.num_host_tokens
        self.note(entry, unit)
        return hit

    def note(self, entry: Tracked, unit: UnitId, behind: Sequence[BlockHash] = ()) -> None:
        """Note that a unit uses a prompt now; ``behind``: waypoints of its output by name."""
        bit = self._bits.get(unit)
        if bit is None:
            return
        names = _names(entry)
        if behind and entry.request is not None:
            whole = num_waypoints(len(entry.request.prompt_token_ids) - 1)
            names = (*names[:whole], *behind)
        self._device.note(bit, names)
        self._host.note(bit, names)

    def admitted(self, entry: Tracked, unit: UnitId, said: Admission, expected: int) -> None:
        """Compare the tokens that an admission found with those ``expected`` at its dispatch.

        A worker's own claims that fail are counted, and none is believed after the third.
        """
        worker_id, num_cached = unit.worker_id, said.num_cached_tokens
        if num_cached > entry.num_tokens or said.num_host_tokens > num_cached:
            self.num_bad_reports += 1
            return
        self._device.num_reported += num_cached - said.num_host_tokens
        self._host.num_reported += said.num_host_tokens
        claimed = self._claimed.get(worker_id)
        if not claimed or num_cached >= expected:
            return
        missing = _names(entry)[num_waypoints(num_cached) : num_waypoints(expected)]
        if not claimed.isdisjoint(missing):
            self._num_false[worker_id] = self._num_false.get(worker_id, 0) + 1
            self._num_failed += 1
            claimed.difference_update(missing)
        if self._num_false.get(worker_id, 0) >= MOST_FALSE_CLAIMS:
            self._drop_claims(worker_id)

    def claim(self, info: WorkerInfo, prefixes: Iterable[CachedPrefixes]) -> None:
        """Take the beginnings that a worker's snapshot names."""
        if self._num_false.get(info.worker_id, 0) >= MOST_FALSE_CLAIMS:
            return
        claimed = self._claimed.setdefault(info.worker_id, set())
        for each in prefixes:
            bit = self._bits.get(UnitId(info.worker_id, each.unit))
            if bit is None:
                continue  # it takes no prompts
            tier = self._host if each.in_host else self._device
            num_blocks = info.num_host_blocks if each.in_host else info.num_blocks
            longest = num_waypoints(min(info.max_model_len, num_blocks * info.block_size))
            for name, number in zip(each.names, each.numbers, strict=True):
                if not 1 <= number <= longest:
                    self.num_bad_reports += 1
                    continue
                if not tier.holders.get(name, 0) >> bit & 1:
                    claimed.add(name)
                    self._num_claims += 1
                tier.hold(bit, name, number)
            tier.note(bit, ())

    def lost(self, unit: UnitId, names: Sequence[BlockHash] | None) -> None:
        """Forget names that a unit no longer holds on its device; None for all."""
        bit = self._bits.get(unit)
        if bit is not None:
            self._device.drop(bit, self._device.names_of(bit) if names is None else names)

    def _drop_claims(self, worker_id: str) -> None:
        names = self._claimed.pop(worker_id)
        for unit, bit in self._bits.items():
            if unit.worker_id == worker_id:
                self._device.drop(bit, names)
                self._host.drop(bit, names)


def _names(entry: Tracked) -> Sequence[BlockHash]:
    """Return the names of its prompt's waypoints, made once."""
    if entry.waypoint_names is None:
        request = entry.request
        if request is None:
            return ()
        tokens = request.prompt_token_ids
        if request.output_token_ids and isinstance(tokens, tuple):  # others are simulated
            tokens = (*tokens, *request.output_token_ids)
        entry.waypoint_names = waypoint_names(tokens, request.cache_salt, request.adapter)
    return entry.waypoint_names
