"""The contents of a forward pass: the policy orders the requests, the limits bound them."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, inf

from headway.blocks import blocks_for
from headway.cluster import UnitLoad
from headway.core.worker.batch import ClockedBatch
from headway.core.worker.fair_chunk import FairChunk
from headway.core.worker.fair_turns import FairTurns
from headway.core.worker.flight import Share
from headway.core.worker.lifecycle import Stage
from headway.core.worker.pass_limit import prompt_tokens_within
from headway.core.worker.room import (
    BlockAllocator,
    Preemptions,
    lends_to_readers,
    num_reserved,
    yielding,
)
from headway.core.worker.sequence import Sequence
from headway.core.worker.unit import WorkerUnit
from headway.cost.costs import Constant, Costs
from headway.forward_pass import PassItem
from headway.policies.batching import Batching
from headway.policies.batching.queue import Entry, RankedQueue
from headway.policies.readers import constants_of, teach


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a DP unit's part of one pass."""

    watermark: float
    """Share of the unit's blocks that admission keeps free while others hold some."""
    max_running: int = 0
    """Most requests, 0 for any number. Others keep their blocks until blocks are short."""
    max_len: float = inf
    """Most tokens of a request."""


@dataclass(slots=True, eq=False)
class _Kept:
    """State of a DP unit that lasts from pass to pass."""

    queue: RankedQueue[Sequence]
    chunk: FairChunk
    served: abc.Sequence[Entry[Sequence]] = ()
    refused: Sequence | None = None
    """The request that could not be admitted last time."""
    refused_version: int = -1
    crowded_from: float = inf
    """Level up to which more requests of tenants that are ahead were left out than the pass had."""
    is_short: bool = False


class PassPlanner:
    """A planner of each DP unit's part of a pass; it reports the outcome to the policy."""

    def __init__(self, batching: Batching, limits: Limits) -> None:
        self._policy = batching
        self._limits = limits
        self._units: dict[int, _Kept] = {}
        self.turns = FairTurns()
        self.preemptions = Preemptions()

    def plan(self, unit: WorkerUnit, *, now: float, gently: bool = False) -> list[Share]:
        """Return the unit's requests and their items, in the policy's order.

        A convertible decoder's decoding requests come first, whatever the policy; prompts get
        what they leave of the chunk (TokenScale).

        ``gently``: plan without preempting, and leave out requests that the pass in flight may
        fill.
        """
        kept = self._units.get(unit.unit)
        if kept is None:
            kept = self._units[unit.unit] = _Kept(RankedQueue(self._policy), FairChunk())
        queue = kept.queue
        queue.put_decodes_first(unit.decodes_first)
        self.turns.look(unit)
        queue.put_levels(self.turns.levels)
        unit.keep([name for name, level in self.turns.levels.items() if level > 0])
        self._take_in(unit, kept, now)
        num_prompt_tokens, pace = inf, self._policy.keeps_pace
        if pace is not None:
            num_prompt_tokens = prompt_tokens_within(unit, self.turns, pace, now=now)
        is_fair = kept.chunk.divide(unit, num_prompt_tokens, self.turns.score_weight)
        fair = kept.chunk if is_fair else None
        if not queue:
            kept.served, kept.refused, kept.is_short = (), None, False
            return []
        room = BlockAllocator(
            unit,
            self._policy,
            queue.running,
            self.preemptions,
            self._limits.watermark,
            self.turns,
            now=now,
            gently=gently,
        )
        room.clear()
        room.make_room()
        version = queue.version
        turns = self.turns if self.turns.levels else None
        is_same = turns is None and kept.refused_version == version  # blocks of others grow
        hopeless = kept.refused if is_same else None
        before = kept.served
        plan = _UnitPlan(
            self._limits,
            unit,
            queue,
            room,
            hopeless,
            fair,
            turns,
            before,
            num_prompt_tokens,
            gently=gently,
            crowded_from=kept.crowded_from,
        )
        shares = plan.shares()
        if turns is not None:
            turns.charge(shares, some_wait=len(shares) < len(queue))
        kept.crowded_from = plan.crowded_from(len(shares))
        kept.served, kept.refused, kept.refused_version = plan.served, plan.refused, version
        kept.is_short = room.is_short
        return shares

    @property
    def is_short(self) -> bool:
        """True if a request found no room that a preemption could have made."""
        return any(kept.is_short for kept in self._units.values())

    def _take_in(self, unit: WorkerUnit, kept: _Kept, now: float) -> None:
        """Update the order, looking only at what has changed."""
        for key in unit.changed:
            sequence = unit.candidate(key)
            if sequence is not None:
                self._policy.recall(key, sequence.levels_spent)
                kept.queue.touch(sequence, now=now)
                continue
            kept.queue.discard(key)
            if key not in unit.sequences:
                self._policy.forget(key)
        unit.changed.clear()
        kept.queue.settle(kept.served, now=now)

    # --- several steps in one pass ----------------------------------------------------

    def serve(self, entries: Iterable[Entry[Sequence]]) -> None:
        """Note whom the last pass has served, where no plan says it."""
        served: dict[int, list[Entry[Sequence]]] = {unit: [] for unit in self._units}
        for entry in entries:
            served[entry.candidate.unit].append(entry)
        for unit, kept in self._units.items():
            kept.served = served[unit]

    def served(self) -> list[Entry[Sequence]]:
        """Return whom the last plan serves, in the order of its shares."""
        return [entry for kept in self._units.values() for entry in kept.served]

    @property
    def serves_all(self) -> bool:
        """True if the last plan serves every request."""
        return not any(True for _ in self._contended())

    def joining(
        self, unit: WorkerUnit, clock: ClockedBatch, *, now: float
    ) -> list[Entry[Sequence]] | None:
        """Return who joins a unit's batch for its next step; None if that needs a plan.

        The batch goes on while its unit serves every request, with room for all of them.
        """
        kept, pool = self._units[unit.unit], unit.pool
        queue = kept.queue
        self.turns.look(unit)
        if queue.is_outdated or self.turns.levels or unit.wanted:
            return None
        if queue.due_at <= now:
            clock.sync()
        kept.served, changed = clock.synced(unit.unit), list(unit.changed)
        self._take_in(unit, kept, now)
        num_running = len(queue.running)
        places = min(unit.chunk_tokens, self._limits.max_running or inf)
        if queue.waiting or num_running > places:
            return None
        if num_running > 1 and pool.num_free < num_reserved(unit, self._policy):
            return None
        entries = (queue.find(key) for key in changed if key not in clock)
        joining = [entry for entry in entries if entry is not None]
        if not all(entry.candidate.may_join for entry in joining):
            return None
        num_blocks = clock.growth(unit.unit)
        for entry in joining:
            kv = entry.candidate.kv
            num_blocks += blocks_for(kv.num_computed + 1, pool.block_size) - len(kv.blocks)
        return joining if num_blocks <= pool.num_free else None

    def most_steps(self, most: int) -> int:
        """Return how many steps the pass may have before the order could change its requests."""
        if most > 1 and self.turns.levels and not self.serves_all:
            return 1
        if most <= 1 or self._policy.improves:
            return most
        for kept in self._contended():
            for entry in kept.served:
                left = entry.until_tokens - entry.candidate.attained_tokens
                if left < most:
                    most = max(1, ceil(left))
        return most

    @property
    def due_at(self) -> float:
        """Earliest instant when a rank that matters expires."""
        return min((kept.queue.due_at for kept in self._contended()), default=inf)

    def _contended(self) -> Iterable[_Kept]:
        """Yield the units in which some request is not served."""
        return (kept for kept in self._units.values() if len(kept.queue) > len(kept.served))

    def with_yielding(self, unit: WorkerUnit, load: UnitLoad, *, now: float) -> UnitLoad:
        """Return a unit's load with what yields to a reader's first token, where that is so."""
        kept = self._units.get(unit.unit)
        if kept is None or not lends_to_readers(unit, self._policy):
            return load
        num_tokens, num_blocks = yielding(unit, self._policy, kept.queue, now=now)
        return replace(load, yielding_tokens=num_tokens, num_yielding_blocks=num_blocks)

    # --- reports to the policy --------------------------------------------------------

    def passed(self, pass_time: float, num_tokens: int, num_steps: int) -> None:
        """Report steps of ``pass_time`` seconds, each over ``num_tokens`` tokens, to the policy."""
        self._policy.passed(pass_time, num_tokens, num_steps)
        self.turns.passed(num_steps)

    def completed(self, sequence: Sequence, *, now: float) -> None:
        """Report a completed request to the policy."""
        self.preemptions.by_request[sequence.num_preemptions] += 1
        self._policy.completed(sequence, now=now)

    def learn(self, costs: Costs) -> None:
        """Report the worker's costs to the policy, if it reads them."""
        teach(self._policy, costs)

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Return the constants that the policy uses, with their sources."""
        return constants_of(self._policy)

    def tune(self, gamma: float) -> None:
        """Report the pool's γ, 1/s, to the policy."""
        self._policy.tune(gamma)


class _UnitPlan:
    """One walk over the policy's order; changes to the order happen afterwards."""

    def __init__(
        self,
        limits: Limits,
        unit: WorkerUnit,
        queue: RankedQueue[Sequence],
        room: BlockAllocator,
        hopeless: Sequence | None,
        fair: FairChunk | None,
        turns: FairTurns | None,
        before: abc.Sequence[Entry[Sequence]],
        num_prompt_tokens: float,
        *,
        gently: bool,
        crowded_from: float,
    ) -> None:
        self._crowded_from = crowded_from  # in the last plan
        self._left_out: dict[float, int] = {}  # of tenants that are ahead, by level
        self._fair = fair  # None if the chunk is nobody's in particular
        self._turns = turns  # None if there is one tenant
        self._limits = limits
        self._unit = unit
        self._block_size = unit.pool.block_size
        self._running = queue.running
        self._waiting = queue.waiting
        self._room = room
        self._hopeless = hopeless  # could not be admitted last time, and nothing has changed
        self._gently = gently
        self._queue = queue
        self._before = before  # served by the last plan
        self._num_turns = 0  # of waiting requests
        self._put_off: list[Entry[Sequence]] = []  # another computes their next block
        self._budget = unit.chunk_tokens
        self._prompt_budget = num_prompt_tokens  # what the pass has time for
        self._places = float(limits.max_running or inf)
        self._planned: dict[Entry[Sequence], PassItem] = {}
        self._held_back: list[Entry[Sequence]] = []  # by their tenants' parts of the chunk
        self.served: list[Entry[Sequence]] = []
        self.refused: Sequence | None = None

    def shares(self) -> list[Share]:
        if self._turns is not None:
            self._turns.begin()
        while self._budget > 0 and self._places > 0:
            entry = self._next()
            if entry is None:
                break
            self._serve(entry)
        for entry in self._held_back:
            if self._places <= 0 or not self._extend(entry):
                break
        self._serve_put_off()
        self.served = list(self._planned)
        return [(item, entry.candidate) for entry, item in self._planned.items()]

    def crowded_from(self, num_served: int) -> float:
        """Return the level up to which it left out more requests than it serves; inf for none.

        Whoever is at less than that level is not behind the crowd, and may be admitted.
        """
        num_left_out = 0
        for level in sorted(self._left_out):
            num_left_out += self._left_out[level]
            if num_left_out > num_served:
                return level
        return inf

    def _serve_put_off(self) -> None:
        """Serve who waited for another's block, where the pass does not compute it after all."""
        room = self._room
        for entry in self._put_off:
            if self._budget <= 0 or self._places <= 0 or not room.is_open or room.yielded:
                return
            if not self._is_being_made(entry.candidate, ()):
                self._serve(entry)

    def _is_being_made(self, sequence: Sequence, before: abc.Sequence[Entry[Sequence]]) -> bool:
        """Return whether its next block is computed in this pass by another, or seems to be.

        ``before``: whom the last plan has served; their turns may still come. A request that is
        not served holds up nobody.
        """
        maker = self._unit.maker(sequence)
        if maker is None or maker.stage is Stage.SWAPPING_IN:
            return maker is not None
        entry = self._queue.find(maker.key)
        return entry in self._planned or entry in before

    def _serve(self, entry: Entry[Sequence]) -> None:
        """Plan its tokens, as many as the chunk and its tenant's part of it have."""
        sequence, most, fair = entry.candidate, self._budget, self._fair
        if not sequence.decoding and self._prompt_budget < 1:
            return
        if self._turns is not None and not (most := self._turns.most(sequence, most)):
            if sequence.stage is Stage.WAITING:
                self._room.is_open = False  # nor is there time for who stands behind it
            else:
                level = self._turns.levels[sequence.tenant]
                self._left_out[level] = self._left_out.get(level, 0) + 1
            return
        if sequence.stage is Stage.WAITING and not self._admit(sequence):
            return
        if sequence.stage is Stage.SWAPPING_IN:  # its next token is computed in the pass after
            self._budget, self._places = self._budget - 1, self._places - 1.0
            return
        if not sequence.decoding:
            most = int(min(most, self._prompt_budget))
        if fair is not None and not sequence.decoding:
            most = fair.take(sequence, most)
            if most < sequence.num_remaining:
                self._held_back.append(entry)
        item = self._item(sequence, most) if most > 0 else None
        if item is not None:
            self._plan(entry, item, 0)
            self._places -= 1.0

    def _extend(self, entry: Entry[Sequence]) -> bool:
        """Give it tokens that no other tenant can use, if any; everybody has had a turn."""
        spare = 0
        if self._fair is not None:
            spare = self._fair.spare_for(entry.candidate)
            spare = int(min(self._budget, spare, self._prompt_budget))
        if self._turns is not None:
            spare = self._turns.most(entry.candidate, spare)
        if spare <= 0:
            return False
        before = self._planned.get(entry)
        num_before = len(before.token_ids) if before is not None else 0
        item = self._item(entry.candidate, num_before + spare)
        if item is not None:
            self._plan(entry, item, num_before)
            self._places -= 1.0 if before is None else 0.0
        return True

    def _plan(self, entry: Entry[Sequence], item: PassItem, num_before: int) -> None:
        self._planned[entry] = item
        num_tokens = len(item.token_ids) - num_before
        self._budget -= num_tokens
        if not entry.candidate.decoding:
            self._prompt_budget -= num_tokens
            if self._fair is not None:
                self._fair.charge(entry.candidate, num_tokens)
        if self._turns is not None:
            self._turns.planned(entry.candidate, item, num_before)

    def _next(self) -> Entry[Sequence] | None:
        running, room, place = self._running, self._room, None
        while room.turn < room.end:
            place = running[room.turn]
            candidate = place[2].candidate
            if candidate.stage is Stage.RUNNING and not (
                self._gently and candidate.is_full(self._limits.max_len)
            ):
                break
            room.turn, place = room.turn + 1, None
        while room.is_open and self._num_turns < len(self._waiting):
            waiting = self._waiting[self._num_turns]
            if room.yielded is not None and room.yielded < waiting:
                room.is_open = False
            elif place is not None and place < waiting:
                break
            else:
                self._num_turns += 1
                if not self._is_being_made(waiting[2].candidate, self._before):
                    return waiting[2]
                self._put_off.append(waiting[2])
        if place is None:
            return None
        room.turn += 1
        return place[2]

    def _admit(self, sequence: Sequence) -> bool:
        turns = self._turns
        if turns is not None and turns.levels.get(sequence.tenant, 0.0) >= self._crowded_from:
            self._room.is_open = False  # who stands behind it is ahead, too, or yields
            return False
        if self._room.admit(sequence, is_hopeless=sequence is self._hopeless):
            return True
        if not self._room.is_short:
            self.refused = sequence
        return False

    def _item(self, sequence: Sequence, budget: int) -> PassItem | None:
        """Return an item of at most ``budget`` tokens; None if no room can be made for it.

        This runs for nearly every request of every pass, so decoding requests take a shortcut.
        """
        request, output, kv = sequence.request, sequence.output, sequence.kv
        start = kv.num_computed
        remaining = len(request.prompt_token_ids) + len(output) - start
        count = remaining if remaining < budget else budget
        if len(kv.blocks) * self._block_size < start + count and not self._room.grow(
            sequence, start + count
        ):
            return None
        token_ids: abc.Sequence[int]
        if remaining == 1 and output:
            token_ids = (output[-1],)
        else:  # it may decode, or answer, after this pass
            self._unit.changed[sequence.key] = None
            token_ids = sequence.tokens(start, start + count)
        return PassItem(
            sequence.key,
            token_ids,
            start,
            kv.blocks,
            count == remaining,
            request.sampling,
            request.prompt_token_ids,
            output,
            request.standing.tenant,
            request.adapter,
        )
