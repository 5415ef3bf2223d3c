"""Every unit that takes prompts, and those that owe least: for policies that choose units."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headway.cluster import Role, UnitId
from headway.policies.dispatch.prefix_hits import Matches
from headway.policies.dispatch.protocol import InstanceLoad, UnitDebt, Waiting

_NUM_LONGEST, _NUM_CHEAPEST = 8, 4


@dataclass(slots=True)
class PromptUnit:
    """A unit while requests are given out: tokens, requests.

    ``kv_tokens`` of ``kv_capacity`` are used; ``num_running`` of its requests decode.
    """

    unit: UnitId
    load: InstanceLoad
    num_owed_tokens: float
    num_requests: int
    capacity: float
    free_tokens: int
    num_running: int
    kv_tokens: int
    kv_capacity: int
    yielding_kv_tokens: int

    @classmethod
    def of(cls, load: InstanceLoad, debt: UnitDebt) -> PromptUnit:
        """Return a unit as it is."""
        return cls(
            debt.unit,
            load,
            debt.num_tokens,
            debt.num_requests,
            debt.capacity,
            debt.free_tokens,
            debt.num_running,
            debt.kv_tokens,
            debt.kv_capacity,
            debt.yielding_kv_tokens,
        )

    def holds(self, entry: Waiting) -> bool:
        """Return whether it has blocks for a prompt; a reader's may have those that yield to it."""
        beside = self.yielding_kv_tokens if entry.opens_answer else 0
        return entry.num_tokens <= self.free_tokens + beside

    def takes(self, entry: Waiting) -> bool:
        """Return whether it takes a prompt that is its own.

        It has blocks for it, and chunk left. A lone unit needs none: there is no pass to pack, and
        what it owes is in its cost.
        """
        return self.holds(entry) and (self.capacity > 0 or self.load.is_lone)

    def cost(self, num_computed: float, delay_weight: float) -> float:
        """Return what computing these tokens of a prompt here adds, in tokens of an instance.

        It is the time until the prompt is through, and the delay of everybody who decodes beside
        it, which counts ``delay_weight`` times. Who is here first decodes by then, unless the unit
        only prefills.
        """
        num_delayed = 0 if self.load.role is Role.PREFILL else self.num_requests
        units = self.load.num_units  # they compute all at once, so that each is so much slower
        return (self.num_owed_tokens + num_computed * (1 + delay_weight * num_delayed)) * units


class PromptUnits:
    """Units by id, kept in the order of what they owe; only changed instances are looked at."""

    def __init__(self, delay_weight: float = 1.0) -> None:
        self._delay_weight = delay_weight
        self._units: dict[UnitId, PromptUnit] = {}
        self._seen: dict[str, Sequence[UnitDebt]] = {}
        self._ranks: list[tuple[float, UnitId]] = []
        self._touched: dict[str, None] = {}

    def __getitem__(self, unit: UnitId) -> PromptUnit:
        """Return a unit."""
        return self._units[unit]

    def __iter__(self) -> Iterator[PromptUnit]:
        """Return all units, in the order in which their instances were seen."""
        return iter(self._units.values())

    @property
    def are_full(self) -> bool:
        """True if none has blocks for any prompt."""
        return all(each.free_tokens + each.yielding_kv_tokens <= 0 for each in self)

    def update(self, loads: Sequence[InstanceLoad]) -> None:
        """Take the loads of all instances that take prompts."""
        seen = self._seen
        for load in loads:
            debts = load.units
            if seen.get(load.worker_id) is not debts:
                self.forget(load.worker_id)
                seen[load.worker_id] = debts
                for debt in debts:
                    self._put(PromptUnit.of(load, debt))

    def forget(self, worker_id: str) -> None:
        """Remove the units of an instance."""
        for debt in self._seen.pop(worker_id, ()):
            self._remove_rank(debt.unit)
            del self._units[debt.unit]

    def _rank(self, unit: PromptUnit) -> float:
        """Return the cost of another chunk there."""
        chunk = unit.load.chunk_tokens / unit.load.num_units
        return unit.cost(chunk, self._delay_weight)

    def _put(self, unit: PromptUnit) -> None:
        self._units[unit.unit] = unit
        insort(self._ranks, (self._rank(unit), unit.unit))

    def _remove_rank(self, unit: UnitId) -> None:
        place = bisect_left(self._ranks, (self._rank(self._units[unit]), unit))
        assert self._ranks[place][1] == unit, "every unit has its rank"
        del self._ranks[place]

    def take(self, unit: UnitId, num_computed: float, num_tokens: int) -> None:
        """Count a request that the next ones will see there; ``restore`` takes it back."""
        value = self._units[unit]
        self._touched[value.load.worker_id] = None
        self._remove_rank(unit)
        value.num_owed_tokens += num_computed
        value.capacity -= num_computed
        value.num_requests += 1
        value.free_tokens -= num_tokens
        value.kv_tokens += num_tokens
        insort(self._ranks, (self._rank(value), unit))

    def restore(self) -> None:
        """Let all units be as their instances' loads say."""
        for worker_id in self._touched:
            for debt in self._seen[worker_id]:
                self._remove_rank(debt.unit)
                self._put(PromptUnit.of(self._units[debt.unit].load, debt))
        self._touched.clear()

    def candidates(self, matches: Matches) -> Iterable[UnitId]:
        """Return units that may be best for a prompt, each once.

        These are the units with the longest beginnings, those of all holders that owe least, and
        those of all units that owe least: a few of each, however many units there are. None is one
        that the request may not go to.
        """
        units = self._units
        longest = [unit for unit in matches.holders(_NUM_LONGEST) if unit in units]
        allowed = (unit for _, unit in self._ranks if matches.allows(unit))
        cheapest = list(islice(allowed, _NUM_CHEAPEST))
        if len(longest) == _NUM_LONGEST:
            holders = (unit for _, unit in self._ranks if matches.holds(unit))
            cheapest += islice(holders, _NUM_CHEAPEST)
        return dict.fromkeys((*longest, *cheapest))
