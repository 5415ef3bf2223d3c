"""``sbs-warm``: SBS, and a request with a cached prefix has an own unit.

A request whose beginning no unit holds more of than the others is SBS's: when, and to whom, is as
ever. One that some unit holds more of goes to the unit with the least cost, at once if that is
ready, beside the interval. If it is not ready, the request waits for the unit's next turn as long
as that is sooner than computing elsewhere what the unit holds. Then it is SBS's like the others.
The cost of a unit is ``t · (owed + uncached · (1 + w · delayed))``: the seconds until the prompt is
through, and those by which it delays all who decode there, which count ``w`` times.
``docs/conversations.md`` has the reasons, and what was tried.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heapreplace
from itertools import islice
from math import inf

from headway.bounds import between
from headway.cluster import Role, UnitId
from headway.cost.costs import Constant, Costs
from headway.policies.answer import Answer
from headway.policies.dispatch.prefix_hits import Hit, Matches
from headway.policies.dispatch.prompt_units import PromptUnit, PromptUnits
from headway.policies.dispatch.protocol import NOBODY, InstanceLoad, OwnUnit, Turn, Waiting
from headway.policies.dispatch.sbs import PASSES, TOP_UP, SbsParams, StaggeredBatch, can_take
from headway.policies.readers import chosen
from headway.request import StreamKey

_PER_TOKEN = 1e-4
"""Seconds of a prompt token while nothing is known."""
_LEAST_HIT, _LEAST_OF_LONE = 256, 64
"""Fewest tokens that a unit has to hold more than another for a request to be its own. A lone unit
makes nobody wait, so there as many as the index can tell."""
_MOST_CHUNKS = 4
"""Chunks of requests that a look judges for each unit that is ready."""
_PASSED = (Role.PREFILL, Role.UNIFIED)
"""Roles of instances on which short prompts pass long ones."""
_MOST_PASSING = 64
"""Requests of which the window chooses the one that passes a long prompt."""


@dataclass(frozen=True, slots=True)
class SbsWarmParams(SbsParams):
    """As of ``sbs``. ``delay_weight``: what a second that an answer is held up counts beside a
    second until a first token: with 1 units serve the mean latency, with less the first token.
    ``passes``: whether a prompt waits for chunk only behind those that it would not pass: for
    workers whose order lets short prompts pass long ones.
    """

    delay_weight: float = between(0, 1000, default=0.5)
    passes: bool = False


@dataclass(slots=True)
class _Look:
    """The requests of one look at the window."""

    own: dict[str, dict[StreamKey, OwnUnit]] = field(default_factory=dict)
    """Those that go to their own unit now, by instance."""
    free: dict[StreamKey, Waiting] = field(default_factory=dict)
    """Those that are SBS's."""
    held: dict[StreamKey, OwnUnit] = field(default_factory=dict)
    """Those that wait for their own unit."""
    is_complete: bool = True
    """True if no request with a cached prefix was left unjudged."""

    def keys_of(self, turn: Turn, own: Mapping[StreamKey, OwnUnit]) -> Iterator[StreamKey]:
        """Yield who may take a turn of SBS's: those it names, and the instance's own."""
        yield from own
        for key in self.free if turn.keys is None else turn.keys:
            if key in self.free:
                yield key


class WarmStaggeredBatch(StaggeredBatch):
    """SBS whose turns leave out requests that wait for their own unit."""

    def __init__(self, params: SbsWarmParams | None = None) -> None:
        params = params or SbsWarmParams()
        self._delay_weight, self._passes = params.delay_weight, params.passes
        self._table = PromptUnits(params.delay_weight)
        self._waits_since: dict[StreamKey, tuple[float, float]] = {}
        """When requests first could not go to their own unit, and W then."""
        self._recheck_at = inf
        self._barred: frozenset[str] = frozenset()
        self._least_hit = 0.0
        self._judged_by: Hashable = None
        self._untelling: set[StreamKey] = set()
        super().__init__(params)

    # --- constants --------------------------------------------------------------------

    def learn(self, costs: Costs) -> None:
        """Take the seconds of a prompt token, and of one that comes back from host memory."""
        super().learn(costs)
        known, source = costs.prefill_per_token or None, costs.source_of("prefill_per_token")
        self._per_token = chosen("prompt token", None, known, source, _PER_TOKEN)
        swap = costs.swap_per_token / 2  # there and back
        self._host_share = min(1.0, swap / self._per_token.value) if swap else 1.0

    def constants(self) -> Sequence[Constant]:
        """Return what SBS uses, and the seconds of a prompt token."""
        return (*super().constants(), self._per_token)

    def leave(self, worker_id: str) -> None:
        """Remove an instance; who waits for it is anybody's."""
        super().leave(worker_id)
        self._table.forget(worker_id)
        held = self.held.items()
        self.held = {key: own for key, own in held if own.unit.worker_id != worker_id}

    # --- turns ------------------------------------------------------------------------

    def turns(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        *,
        now: float,
        waiting: Collection[Waiting] = (),
    ) -> list[Turn]:
        """Return turns of own units, SBS's for everybody else, and of who passes long prompts."""
        turns = self._turns_of_all(loads, num_waiting, now, waiting)
        if not self._passes:
            return turns
        return [*turns, *self._passing(loads, waiting, now)]

    def _turns_of_all(
        self,
        loads: Sequence[InstanceLoad],
        num_waiting: int,
        now: float,
        waiting: Collection[Waiting],
    ) -> list[Turn]:
        self._recheck_at = inf
        ready = {load.worker_id: load for load in loads if self._takes_own(load, now)}
        if not ready:  # as nobody can go, those held stay so
            return super().turns(loads, num_waiting, now=now, waiting=waiting)
        least = _LEAST_OF_LONE if all(load.is_lone for load in loads) else _LEAST_HIT
        # A smaller hit is not worth the message that it would wait for.
        self._least_hit = max(least, self.dispatch_latency / self._per_token.value)
        if not self._is_one_telling(waiting):
            self.held = NOBODY
            return super().turns(loads, num_waiting, now=now, waiting=waiting)
        self._table.update(loads)
        self._barred = self._ownerless(loads)
        look = self._judge_all(waiting, ready, now)
        self._table.restore()
        self._forget_gone(waiting)
        self.held = look.held
        if not (look.own or look.held) and look.is_complete:
            return super().turns(loads, num_waiting, now=now, waiting=waiting)
        rest: list[Turn] = []
        place = {entry.key: number for number, entry in enumerate(waiting)}
        if look.free:
            free = sorted(look.free.values(), key=lambda entry: place[entry.key])
            rest = super().turns(loads, len(free), now=now, waiting=free)
        lone = {load.worker_id for load in ready.values() if load.is_lone}
        shared = []
        for turn in rest:
            # Neither its own nor anybody's starve the other where they share a chunk.
            own = {} if turn.worker_id in lone else look.own.pop(turn.worker_id, {})
            keys = sorted(look.keys_of(turn, own), key=place.__getitem__)
            shared.append(turn._replace(keys=keys, own=own))
        beside = [
            Turn(name, TOP_UP, capped=name not in lone, keys=list(own), own=own)
            for name, own in look.own.items()
        ]
        return [*beside, *shared]

    def _passing(
        self, loads: Sequence[InstanceLoad], waiting: Collection[Waiting], now: float
    ) -> Iterator[Turn]:
        """Yield a turn for one of those that wait and would pass what an instance owes.

        A long prompt takes an instance's chunks for many passes. Whoever the worker would serve
        first need not wait here until it is through. Of instances of one unit alone: of several,
        packing finds the unit that has chunk left.
        """
        most = {
            load.worker_id: min(_passable(load), load.free_tokens)
            for load in loads
            if load.role in _PASSED and load.num_units == 1 and not load.has_capacity
        }
        longest = max(most.values(), default=0)
        if longest <= 0:
            return
        for entry in self._in_turn(waiting, now):
            if entry.num_tokens <= longest and entry.key not in self.held:
                able = (each for each in loads if entry.num_tokens <= most.get(each.worker_id, 0))
                name = min(able, key=lambda load: (load.num_outstanding, load.worker_id)).worker_id
                keys = [
                    other.key
                    for other in islice(self._in_turn(waiting, now), _MOST_PASSING)
                    if other.num_tokens <= most[name] and other.key not in self.held
                ]
                yield Turn(name, PASSES, 1, capped=False, keys=keys or [entry.key])
                return

    def _takes_own(self, load: InstanceLoad, now: float) -> bool:
        """Return whether requests go to their own units there now; lone ones wait for no pass."""
        if load.is_lone:
            return load.has_room
        return can_take(load) and self._ready_at(load) <= now

    def _judge_all(
        self, waiting: Iterable[Waiting], ready: Mapping[str, InstanceLoad], now: float
    ) -> _Look:
        """Judge who waits, in turn, until those that may go would fill the ready units."""
        look = _Look()
        left = float(_MOST_CHUNKS * sum(load.chunk_tokens for load in ready.values()))
        for entry in self._in_turn(waiting, now):
            matches = self._telling(entry)
            if left <= 0:
                look.is_complete = matches is None and not (look.own or look.held)
                if not look.is_complete:
                    break
            elif matches is not None:
                left -= self._judge(entry, matches, ready, look, now)
            else:
                look.free[entry.key] = entry
                left -= entry.num_tokens
        return look

    def _in_turn(self, waiting: Iterable[Waiting], now: float) -> Iterator[Waiting]:
        """Yield each tenant's and class's by arrival: next whose prompts had the fewest tokens.

        So nobody's flood keeps others out of a look, nor do those that step back. Who of them goes
        first is the window's to say.
        """
        queues: dict[Hashable, list[Waiting]] = {}
        for entry in waiting:
            who = self.whose(entry), self.steps_back(entry, now=now)
            queues.setdefault(who, []).append(entry)
        turns = [(0, number, iter(those)) for number, those in enumerate(queues.values())]
        while len(turns) > 1:
            num_tokens, number, those = turns[0]
            following = next(those, None)
            if following is None:
                heappop(turns)
                continue
            yield following
            heapreplace(turns, (num_tokens + following.num_tokens, number, those))
        for _, _, those in turns:
            yield from those

    def _judge(
        self,
        entry: Waiting,
        matches: Matches,
        ready: Mapping[str, InstanceLoad],
        look: _Look,
        now: float,
    ) -> float:
        """Judge one request; return the tokens that it has computed if it goes now, else 0."""
        own = self._own_unit(entry, matches)
        if own is None:
            look.free[entry.key] = entry
            return entry.num_tokens
        unit = self._table[own.unit]
        uncached = max(1.0, entry.num_tokens - self._saved(matches.hit(own.unit)))
        saved = (entry.num_tokens - uncached) * self._unit_seconds(unit.load)
        is_ready = unit.load.worker_id in ready and unit.takes(entry)
        if not is_ready and not self._may_wait(entry.key, unit, saved, now):
            look.free[entry.key] = entry
            return entry.num_tokens
        self._table.take(own.unit, uncached, entry.num_tokens)
        _, wait = self._waits_since.get(entry.key, (now, 0.0))
        own = own._replace(wait=wait, longest_wait=saved)
        if is_ready:
            look.own.setdefault(unit.load.worker_id, {})[entry.key] = own
            return uncached
        look.held[entry.key] = own
        return 0.0

    def _is_one_telling(self, waiting: Collection[Waiting]) -> bool:
        """Return whether a beginning tells units apart; thousands that do not are judged once."""
        judged_by = self.matches_version(), self._least_hit
        if judged_by != self._judged_by:
            self._judged_by, self._untelling = judged_by, set()
        if len(self._untelling) > 2 * len(waiting) + 64:
            self._untelling &= {entry.key for entry in waiting}
        untelling = self._untelling
        for entry in waiting:
            if entry.key not in untelling:
                if entry.num_tokens >= self._least_hit and self._telling(entry):
                    return True
                untelling.add(entry.key)
        return False

    def _telling(self, entry: Waiting) -> Matches | None:
        """Return who holds its beginning, if that tells units apart."""
        matches, least = self.matches(entry), self._least_hit
        if matches is None or matches.longest < least:
            return None
        return matches if matches.longest - matches.shortest >= least else None

    # --- where ------------------------------------------------------------------------

    def _own_unit(self, entry: Waiting, matches: Matches) -> OwnUnit | None:
        """Return the unit of least cost, if it holds enough; None if the request is anybody's."""
        table, num_tokens, barred = self._table, entry.num_tokens, self._barred
        costs: list[tuple[float, UnitId]] = []
        for name in table.candidates(matches):
            if name.worker_id in barred:
                continue
            unit = table[name]
            uncached = max(1.0, num_tokens - self._saved(matches.hit(name)))
            costs.append((unit.cost(uncached, self._delay_weight), name))
        if not costs:
            return None
        tokens, name = best = min(costs)
        hit = matches.hit(name)
        if hit.num_tokens < self._least_hit:
            return None
        seconds = self._per_token.value
        own = OwnUnit(
            name,
            hit.num_tokens,
            int(table[name].num_owed_tokens),
            tokens * seconds,
            num_host_tokens=hit.num_host_tokens,
        )
        costs.remove(best)
        if not costs:
            return own
        tokens, name = min(costs)
        return own._replace(runner_up=name, runner_up_cost=tokens * seconds)

    def _ownerless(self, loads: Iterable[InstanceLoad]) -> frozenset[str]:
        """Return the instances for which nobody waits: silent ones, and convertible ones."""
        return frozenset(
            load.worker_id
            for load in loads
            if self._instances[load.worker_id].fallback
            or (load.role is Role.CONVERTIBLE and not self._all_convert)
        )

    def _saved(self, hit: Hit) -> float:
        """Return the tokens whose computing a hit saves; the link costs a share of those on it."""
        num_device, num_host = hit
        return num_device + num_host * (1.0 - self._host_share) if num_host else num_device

    def _unit_seconds(self, load: InstanceLoad) -> float:
        """Return t: one unit's seconds for a prompt token; its instance computes all at once."""
        return self._per_token.value * load.num_units

    # --- how long ---------------------------------------------------------------------

    def _may_wait(self, key: StreamKey, unit: PromptUnit, saved: float, now: float) -> bool:
        """Return whether it waits for its unit: while that is sooner than computing elsewhere.

        In all it waits no longer than that takes; then it is anybody's for good.
        """
        wait = self._wait(unit, now)
        until = self._waits_since.setdefault(key, (now, wait))[0] + saved
        if now >= until or wait >= saved:
            return False
        self._recheck_at = min(self._recheck_at, until)
        return True

    def _wait(self, unit: PromptUnit, now: float) -> float:
        """Return W: the seconds until a unit's next turn, as far as known."""
        load = unit.load
        ends_at = self._instances[load.worker_id].dispatched_at + self._turn_round
        behind = max(0.0, unit.num_owed_tokens - load.chunk_tokens / load.num_units)
        return max(0.0, ends_at - now) + behind * self._unit_seconds(load)

    def _forget_gone(self, waiting: Collection[Waiting]) -> None:
        """Forget since when requests waited that are gone, once they are the majority."""
        if len(self._waits_since) > 2 * len(waiting) + 64:
            alive = {entry.key for entry in waiting}
            kept = (each for each in self._waits_since.items() if each[0] in alive)
            self._waits_since = dict(kept)

    def wakeup(
        self, loads: Sequence[InstanceLoad], num_waiting: int, *, now: float
    ) -> float | None:
        """Return SBS's next turn, or when somebody stops waiting for its unit."""
        at = super().wakeup(loads, num_waiting, now=now)
        if not num_waiting or not now < self._recheck_at < inf:
            return at
        return self._recheck_at if at is None else min(at, self._recheck_at)


def _passable(load: InstanceLoad) -> int:
    """Return the longest prompt that the worker of one unit would serve before what it owes.

    Of a unified one only a prompt of a chunk or more is passed: the shorter may wait for a place,
    which the newcomer lacks, too.
    """
    least = load.chunk_tokens if load.role is Role.UNIFIED else 0
    return load.units[0].passable(load.chunk_tokens, least)


ANSWER = Answer(
    "sbs-warm", WarmStaggeredBatch, "SBS, with own units for cached prefixes", SbsWarmParams
)
