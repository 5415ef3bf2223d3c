"""One DP unit's share of one forward pass: who is served, who is admitted, who has to yield."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from headway.blocks import blocks_for
from headway.core.worker.sequence import SequenceState, Stage
from headway.core.worker.unit import UnitState
from headway.forward_pass import PassItem
from headway.policies.batching import Batching
from headway.policies.batching.queue import Entry, Place, RankedQueue


@dataclass(frozen=True, slots=True)
class Limits:
    """``chunk_tokens`` and ``max_running`` requests (0: any number) of a DP unit in one pass.

    Who holds blocks and finds no place pauses, and loses nothing until blocks are short.
    ``watermark``: the share of its blocks that admission leaves free while others hold some.
    """

    chunk_tokens: int
    watermark: float
    max_running: int = 0


class UnitPlan:
    """Goes through the policy's order once; what it changes moves in the order afterwards.

    ``gently``: nobody loses blocks; ``is_short`` says whether somebody should have.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Batching,
        unit: UnitState,
        queue: RankedQueue[SequenceState],
        *,
        now: float,
        gently: bool = False,
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._unit = unit
        self._block_size = unit.pool.block_size
        self._now = now
        self._gently = gently
        self.is_short = False
        self._running: list[Place[SequenceState]] = queue.running
        self._waiting: list[Place[SequenceState]] = queue.waiting
        self._turn = 0  # running[:turn] have had theirs
        self._end = len(self._running)  # running[end:] have been preempted by need
        self._num_admitted = 0
        self._may_admit = True
        self._yielded: Place[SequenceState] | None = None  # the best of those that have
        self.served: list[Entry[SequenceState]] = []
        self.refused: SequenceState | None = None
        self.num_voluntary = self.num_forced = 0

    def items(self, hopeless: SequenceState | None = None) -> list[PassItem]:
        """The unit's items, in the policy's order; marks the sequences as in the pass.

        ``hopeless``: who could not be admitted last time, where nothing has changed since.
        """
        items: list[PassItem] = []
        budget = self._limits.chunk_tokens
        places = self._limits.max_running or inf
        while budget > 0 and places > 0:
            entry = self._next()
            if entry is None:
                break
            sequence = entry.candidate
            if sequence.stage is Stage.WAITING and not self._admit(sequence, hopeless):
                continue
            if sequence.returning:  # its next token is computed in the pass after
                budget, places = budget - 1, places - 1
                continue
            item = self._item(sequence, budget)
            if item is not None:
                items.append(item)
                self.served.append(entry)
                budget -= len(item.token_ids)
                places -= 1
        return items

    def _next(self) -> Entry[SequenceState] | None:
        """The best that has not had its turn."""
        running, place = self._running, None
        while self._turn < self._end:
            place = running[self._turn]
            candidate = place[2].candidate
            if candidate.stage is Stage.RUNNING and not (candidate.pauses or candidate.returning):
                break
            self._turn, place = self._turn + 1, None
        if self._may_admit and self._num_admitted < len(self._waiting):
            waiting = self._waiting[self._num_admitted]
            if self._yielded is not None and self._yielded < waiting:
                self._may_admit = False
            elif place is None or waiting < place:
                return waiting[2]
        if place is None:
            return None
        self._turn += 1
        return place[2]

    # --- admission --------------------------------------------------------------------

    def _admit(self, sequence: SequenceState, hopeless: SequenceState | None) -> bool:
        """Blocks for all of its tokens; one that does not fit blocks those that wait behind."""
        victims: list[Place[SequenceState]] | None = None
        if self._fits(sequence):
            victims = []
        elif self._policy.preempts and sequence is not hopeless:
            if self._gently:
                self._may_admit, self.is_short = False, True
                return False
            victims = self._victims(sequence)
        if victims is None:
            self._may_admit, self.refused = False, sequence
            return False
        for victim in victims:
            self._preempt(victim[2].candidate, voluntary=True)
        if victims:  # nobody passes those who have just made room
            self._yielded = min(victims if self._yielded is None else [*victims, self._yielded])
        self._unit.admit(sequence)
        self._num_admitted += 1
        return True

    def _fits(self, sequence: SequenceState, num_blocks: int = 0) -> bool:
        """Whether there is room once so many blocks have come free."""
        pool = self._unit.pool
        num_free = pool.num_free + num_blocks
        spare = int(self._limits.watermark * pool.num_blocks) if num_free < pool.num_blocks else 0
        needed = blocks_for(sequence.num_tokens, pool.block_size) + spare
        if needed <= num_free:
            return True
        if num_blocks or sequence.num_computed or not sequence.hashes:
            return False  # whom it would share blocks with may be among those that yield
        return needed - pool.num_in_use(self._unit.adoptable(sequence)) <= num_free

    def _victims(self, sequence: SequenceState) -> list[Place[SequenceState]] | None:
        """Running ones behind it that may yield, worst first; None where that is not enough."""
        victims: list[Place[SequenceState]] = []
        num_blocks = 0
        for place in reversed(self._running[self._turn : self._end]):
            victim = place[2].candidate
            if victim.stage is not Stage.RUNNING:
                continue
            if self._policy.may_preempt(victim, sequence, now=self._now):
                victims.append(place)
                num_blocks += self._unit.pool.num_own(victim.blocks)
                if self._fits(sequence, num_blocks):
                    return self._needed(sequence, victims, num_blocks)
        return None

    def _needed(
        self, sequence: SequenceState, victims: list[Place[SequenceState]], num_blocks: int
    ) -> list[Place[SequenceState]]:
        """Without those that need not yield after all, the best of them first."""
        needed = list(victims)
        for victim in reversed(victims[:-1]):
            rest = num_blocks - self._unit.pool.num_own(victim[2].candidate.blocks)
            if self._fits(sequence, rest):
                needed.remove(victim)
                num_blocks = rest
        return needed

    # --- growth -----------------------------------------------------------------------

    def _grow(self, sequence: SequenceState, count: int) -> bool:
        """Blocks for ``count`` more tokens, taken from the end of the order if none is free."""
        while not self._unit.pool.grow(sequence.blocks, sequence.num_computed + count):
            if self._gently:
                self._may_admit, self.is_short = False, True
                return False
            victim = self._worst()
            if victim is None:
                return False
            self._preempt(victim, voluntary=False)
            self._may_admit = False  # nobody passes one who has just lost its blocks
        return True

    def _worst(self) -> SequenceState | None:
        while self._end > self._turn:
            self._end -= 1
            victim = self._running[self._end][2].candidate
            if victim.stage is Stage.RUNNING:
                return victim
        return None

    def _preempt(self, victim: SequenceState, *, voluntary: bool) -> None:
        self._policy.preempted(victim, voluntary=voluntary)
        self._unit.preempt(victim, voluntary=voluntary)
        self.num_voluntary += voluntary
        self.num_forced += not voluntary

    # --- a request's share ------------------------------------------------------------

    def _item(self, sequence: SequenceState, budget: int) -> PassItem | None:
        """At most ``budget`` tokens of it; None where no room can be made for them.

        What nearly every request of every pass comes to, so one that decodes takes a short way.
        """
        request, output, start = sequence.request, sequence.output, sequence.num_computed
        remaining = len(request.prompt_token_ids) + len(output) - start
        count = remaining if remaining < budget else budget
        if len(sequence.blocks) * self._block_size < start + count and not self._grow(
            sequence, count
        ):
            return None
        token_ids: Sequence[int]
        if remaining == 1 and output:
            token_ids = (output[-1],)
        else:  # it may decode, or answer, after this pass
            self._unit.changed[sequence.key] = None
            token_ids = sequence.tokens(start, start + count)
        sequence.num_passes += 1
        return PassItem(
            sequence.key,
            token_ids,
            start,
            sequence.blocks,
            count == remaining,
            request.sampling,
            request.prompt_token_ids,
            output,
        )
