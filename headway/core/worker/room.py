"""Blocks for one plan of a DP unit: admission, growth and preemption."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from headway.blocks import blocks_for
from headway.core.worker.fair_turns import FairTurns
from headway.core.worker.lifecycle import Stage
from headway.core.worker.news import AHEAD_OF_NEED, FOR_OTHERS, IT_GREW, OTHERS_GREW
from headway.core.worker.sequence import Sequence
from headway.core.worker.unit import WorkerUnit
from headway.policies.batching import Batching
from headway.policies.batching.new_reader import NewReader
from headway.policies.batching.queue import Place, RankedQueue


@dataclass(slots=True)
class Preemptions:
    """Preemption counts: for better requests, and by the growth of others' KV."""

    num_voluntary: int = 0
    num_forced: int = 0
    by_request: Counter[int] = field(default_factory=Counter)
    """Number of completed requests by their number of preemptions."""


def lends_to_readers(unit: WorkerUnit, policy: Batching) -> bool:
    """Return whether the scheduler is told what yields to a reader's first token on a unit."""
    return unit.is_unified and policy.yields_to_readers


def num_reserved(unit: WorkerUnit, policy: Batching) -> int:
    """Return the blocks to keep free ahead of need: as many as come until others would be freed.

    That is no time where whoever comes is sent to a full unit, and takes blocks in its first plan.
    Elsewhere blocks have to be seen free before anybody is sent.
    """
    if lends_to_readers(unit, policy):
        return 0
    return int(policy.reserve * unit.pool.num_blocks)


def yielding(
    unit: WorkerUnit, policy: Batching, queue: RankedQueue[Sequence], *, now: float
) -> tuple[int, int]:
    """Return the queued prompt tokens and the blocks that yield to a reader's first token.

    They are of who stands behind it in the order of the last plan, if it comes now with the longest
    prompt that the unit holds: they yield to all others, too.
    """
    pool = unit.pool
    newcomer = NewReader(now, pool.num_blocks * pool.block_size)
    rank = queue.rank(newcomer, now).rank
    num_tokens, num_blocks = _waiting_behind(unit, queue, rank), 0
    for sequence in _behind(queue.running, rank):
        if sequence.stage is Stage.RUNNING:
            num_tokens += 0 if sequence.decoding else sequence.num_queued
            if policy.may_preempt(sequence, newcomer, now=now):
                num_blocks += pool.num_own(sequence.kv.blocks)
    return num_tokens, num_blocks


def _waiting_behind(unit: WorkerUnit, queue: RankedQueue[Sequence], rank: tuple[float, ...]) -> int:
    """Return the queued prompt tokens of who waited when the order was made, behind a rank.

    They are counted on the shorter side of it: thousands may wait.
    """
    places = queue.waiting
    first = bisect_right(places, rank, key=itemgetter(0))
    if 2 * first >= len(places):
        return _queued(place[2].candidate for place in places[first:])
    num_tokens = unit.waiting.queued_tokens + unit.waiting.num_decoding
    for key in unit.changed:
        entry, sequence = queue.find(key), unit.sequences.get(key)
        if sequence is not None and (entry is None or entry.running):
            num_tokens -= _queued([sequence])
    return num_tokens - _queued(place[2].candidate for place in places[:first])


def _queued(sequences: Iterable[Sequence]) -> int:
    return sum(each.num_queued for each in sequences if each.stage is Stage.WAITING)


def _behind(places: list[Place[Sequence]], rank: tuple[float, ...]) -> Iterator[Sequence]:
    for place in reversed(places):
        if place[0] <= rank:
            return
        yield place[2].candidate


class BlockAllocator:
    """Finds blocks for the requests of one plan, in the policy's order.

    A request is admitted with blocks for all of its tokens, and only while a ``watermark`` of
    blocks stays free for the growth of running requests (unless nothing runs). A better request
    that does not fit preempts those behind it, if that frees enough, and the policy allows it, or
    they are of a tenant that is ahead of its own (``FairTurns``).
    Growth takes blocks from the last who gives way, else from the last. ``running``: requests
    that hold blocks, best first. ``gently``: plan without preempting.
    """

    def __init__(
        self,
        unit: WorkerUnit,
        policy: Batching,
        running: list[Place[Sequence]],
        preemptions: Preemptions,
        watermark: float,
        turns: FairTurns,
        *,
        now: float,
        gently: bool,
    ) -> None:
        self._unit = unit
        self._policy = policy
        self._running = running
        self._preemptions = preemptions
        self._spare = int(watermark * unit.pool.num_blocks)
        self._turns = turns
        self._now = now
        self._gently = gently
        self.turn = 0
        """Requests before this place have had their turn."""
        self.end = len(running)
        """Requests from this place on were preempted by growth."""
        self.is_open = True
        """True while others may still be admitted."""
        self.is_short = False
        """True if a preemption was needed and not allowed."""
        self._num_promised = 0
        """Blocks that are kept for requests of other workers."""
        self.yielded: Place[Sequence] | None = None
        """The best of the preempted requests: nobody behind it is admitted."""

    def admit(self, sequence: Sequence, *, is_hopeless: bool) -> bool:
        """Give it blocks for all of its tokens; if it does not fit, admit nobody behind it."""
        victims: list[Place[Sequence]] = []
        if not self._fits(sequence):
            if (self._policy.preempts or self._turns.levels) and not is_hopeless:
                if self._gently:
                    return self._close(is_short=True)
                victims = self._victims(sequence)
                if not victims and self._call_back(sequence):
                    self._unit.admit(sequence)
                    return True
            if not victims:
                return self._close()
        self._take_from(victims, sequence)
        self._unit.admit(sequence)
        return True

    def make_room(self) -> None:
        """Take blocks from who is ahead for who is to come, and keep them for a few plans."""
        spare, self._spare = self._spare, 0  # it is nobody's that comes from another worker
        for wanted in list(self._unit.wanted.values()):
            sequence = wanted.sequence
            if wanted.num_plans <= 0:
                del self._unit.wanted[sequence.key]
                continue
            if not self._fits(sequence):
                victims = [] if self._gently else self._victims(sequence)
                self._take_from(victims, sequence)
                self._unit.has_made_room |= bool(victims)
                self.is_short = self.is_short or self._gently
            if self._fits(sequence):
                self._num_promised += blocks_for(sequence.num_tokens, self._unit.pool.block_size)
            wanted.num_plans -= not self._gently
        self._spare = spare

    def _take_from(self, victims: list[Place[Sequence]], sequence: Sequence) -> None:
        """Preempt running requests for another one."""
        for place in victims:
            victim = place[2].candidate
            is_voluntary = self._may_preempt(victim, sequence)
            self._preempt(victim, voluntary=is_voluntary, cause=FOR_OTHERS)
        if victims:
            self.yielded = min(victims if self.yielded is None else [*victims, self.yielded])

    def _call_back(self, sequence: Sequence) -> bool:
        """Preempt those that wait for a handoff and are ahead, newest first, if that is enough."""
        held, victims, num_blocks = self._held_with(sequence), list[Sequence](), 0
        for each in reversed(self._unit.holding.values()):
            is_waiting = each.stage is Stage.PREFILLED and each.departure is None
            if not (is_waiting and self._turns.yields(each, sequence, held)):
                continue
            victims.append(each)
            held[each.tenant] -= len(each.kv.blocks)
            num_blocks += self._unit.pool.num_own(each.kv.blocks)
            if self._fits(sequence, num_blocks):
                for victim in victims:
                    self._preempt(victim, voluntary=False, cause=FOR_OTHERS)
                return True
        return False

    def clear(self) -> None:
        """Preempt ahead of need, from the end of the order, until the reserve is free.

        One request always keeps its blocks.
        """
        pool, least = self._unit.pool, num_reserved(self._unit, self._policy)
        while not self._gently and pool.num_free < least and self.end > 1:
            place = self._first_to_yield()
            if place is None:
                return
            self._preempt(place[2].candidate, voluntary=True, cause=AHEAD_OF_NEED)
            self.yielded = place

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give it blocks for ``num_tokens``; preempt who gives way, or else the last, if needed."""
        while not self._grows(sequence, num_tokens):
            if self._gently:
                return self._close(is_short=True)
            victim = self._next_victim(sequence)
            if victim is None:
                return False
            cause = IT_GREW if victim is sequence else OTHERS_GREW
            self._preempt(victim, voluntary=False, cause=cause)
            self._close()  # nobody overtakes a request that was just preempted
            if victim is sequence:
                return False
        return True

    def _grows(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend its blocks; False, and no change, if there are none, or they are for others."""
        unit, pool, blocks = self._unit, self._unit.pool, sequence.kv.blocks
        if self._num_promised + unit.num_kept and self._turns.is_ahead(sequence):
            missing, num_free = blocks_for(num_tokens, pool.block_size) - len(blocks), pool.num_free
            if num_free + len(blocks) < pool.num_blocks:  # else it would wait for itself
                num_free = unit.num_free(sequence.tenant)
            if missing > num_free - self._num_promised:
                return False
        return pool.grow(blocks, num_tokens)

    def _close(self, *, is_short: bool = False) -> bool:
        self.is_open = False
        self.is_short = self.is_short or is_short
        return False

    def _fits(self, sequence: Sequence, num_blocks: int = 0) -> bool:
        """Return whether there is room once that many blocks are freed."""
        pool = self._unit.pool
        num_free = self._unit.num_free(sequence.tenant) + num_blocks
        spare = self._spare if num_free < pool.num_blocks else 0
        needed = blocks_for(sequence.num_tokens, pool.block_size) + spare + self._num_promised
        if needed <= num_free:
            return True
        if num_blocks or sequence.kv.num_computed or not sequence.kv.hashes:
            return False  # victims may hold shared blocks that it would share
        return needed - pool.num_in_use(self._unit.adoptable(sequence)) <= num_free

    def _victims(self, sequence: Sequence) -> list[Place[Sequence]]:
        """Return running requests behind it that may yield, worst first; none if too few."""
        victims: list[Place[Sequence]] = []
        num_blocks, held = 0, self._held_with(sequence)
        for place in reversed(self._running[self.turn : self.end]):
            victim = place[2].candidate
            if victim.stage is not Stage.RUNNING:
                continue
            if self._may_preempt(victim, sequence) or self._turns.yields(victim, sequence, held):
                victims.append(place)
                held[victim.tenant] -= len(victim.kv.blocks)
                num_blocks += self._unit.pool.num_own(victim.kv.blocks)
                if self._fits(sequence, num_blocks):
                    return self._needed(sequence, victims, num_blocks)
        return []

    def _may_preempt(self, victim: Sequence, for_: Sequence) -> bool:
        """Return whether the policy lets a running request yield, to nobody of a tenant ahead.

        Nor to another tenant's while it is computed again: levels change with each pass, and two
        that took each other's blocks by turns would never be done.
        """
        policy, levels = self._policy, self._turns.levels
        if levels and victim.tenant != for_.tenant:
            is_begun_again = victim.num_preemptions > 0 and not victim.decoding
            is_behind = levels.get(victim.tenant, 0.0) < levels.get(for_.tenant, 0.0)
            if is_begun_again or is_behind:
                return False
        if not policy.preempts:
            return False
        now = self._now
        return policy.may_preempt(victim, for_, now=now) or (
            for_.num_preemptions > 0 and policy.takes_back(victim, for_, now=now)
        )

    def _held_with(self, sequence: Sequence) -> Counter[str]:
        """Return the blocks of every tenant once a request is admitted, where tenants differ."""
        held: Counter[str] = Counter()
        if self._turns.levels:
            held[sequence.tenant] = blocks_for(sequence.num_tokens, self._unit.pool.block_size)
            for each in self._unit.holding.values():
                held[each.tenant] += len(each.kv.blocks)
        return held

    def _needed(
        self, sequence: Sequence, victims: list[Place[Sequence]], num_blocks: int
    ) -> list[Place[Sequence]]:
        """Return the victims needed, sparing the best of them where possible."""
        needed = list(victims)
        for victim in reversed(victims[:-1]):
            rest = num_blocks - self._unit.pool.num_own(victim[2].candidate.kv.blocks)
            if self._fits(sequence, rest):
                needed.remove(victim)
                num_blocks = rest
        return needed

    def _first_to_yield(self) -> Place[Sequence] | None:
        """Return the last in the order of those that give way."""
        for place in reversed(self._running[self.turn : self.end]):
            victim = place[2].candidate
            if victim.stage is Stage.RUNNING and self._policy.gives_way(victim):
                return place
        return None

    def _next_victim(self, grower: Sequence) -> Sequence | None:
        """Return who loses blocks to ``grower``: who gives way, even itself, else the last.

        Whom the policy spares loses them to other spared ones alone, and to tenants that its own
        is ahead of.
        """
        if (place := self._first_to_yield()) is not None:
            return place[2].candidate
        behind = [place[2].candidate for place in self._running[self.turn : self.end]]
        behind = [each for each in behind if each.stage is Stage.RUNNING]
        levels = self._turns.levels
        level = levels.get(grower.tenant, 0.0)

        def is_spared(each: Sequence) -> bool:
            return self._policy.is_spared(each) and levels.get(each.tenant, 0.0) <= level

        if any(map(is_spared, behind)) and not self._policy.gives_way(grower):
            others = [each for each in behind if not is_spared(each)]
            if others or not is_spared(grower):
                return others[-1] if others else grower
        while self.end > self.turn:
            victim = self._running[self.end - 1][2].candidate
            if victim.stage is Stage.RUNNING and self._policy.gives_way(grower):
                return grower
            self.end -= 1
            if victim.stage is Stage.RUNNING:
                return victim
        return None

    def _preempt(self, victim: Sequence, *, voluntary: bool, cause: str) -> None:
        self._policy.preempted(victim, voluntary=voluntary)
        victim.levels_spent = self._policy.levels_spent(victim.key)
        self._unit.preempt(victim, voluntary=voluntary, cause=cause)
        self._preemptions.num_voluntary += voluntary
        self._preemptions.num_forced += not voluntary
