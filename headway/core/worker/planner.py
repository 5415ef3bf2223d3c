"""The contents of a forward pass: the policy orders the requests, the limits bound them."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf

from headway.core.worker.flight import Share
from headway.core.worker.lifecycle import Stage
from headway.core.worker.room import BlockAllocator, Preemptions
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

    chunk_tokens: int
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
    served: abc.Sequence[Entry[Sequence]] = ()
    refused: Sequence | None = None
    """The request that could not be admitted last time."""
    refused_version: int = -1
    is_short: bool = False


class PassPlanner:
    """A planner of each DP unit's part of a pass; it reports the outcome to the policy."""

    def __init__(self, batching: Batching, limits: Limits) -> None:
        self._policy = batching
        self._limits = limits
        self._units: dict[int, _Kept] = {}
        self.preemptions = Preemptions()

    def plan(self, unit: WorkerUnit, *, now: float, gently: bool = False) -> list[Share]:
        """Return the unit's requests and their items, in the policy's order.

        ``gently``: plan without preempting, and leave out requests that the pass in flight may
        fill.
        """
        kept = self._units.get(unit.unit)
        if kept is None:
            kept = self._units[unit.unit] = _Kept(RankedQueue(self._policy))
        queue = kept.queue
        self._take_in(unit, kept, now)
        room = BlockAllocator(
            unit,
            self._policy,
            queue.running,
            self.preemptions,
            self._limits.watermark,
            now=now,
            gently=gently,
        )
        room.clear()
        version = queue.version
        hopeless = kept.refused if kept.refused_version == version else None
        plan = _UnitPlan(self._limits, unit, queue, room, hopeless, gently=gently)
        shares = plan.shares()
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

    def most_steps(self, most: int) -> int:
        """Return how many steps the pass may have before the order could change its requests."""
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

    # --- reports to the policy --------------------------------------------------------

    def passed(self, pass_time: float, num_tokens: int, num_steps: int) -> None:
        """Report steps of ``pass_time`` seconds, each over ``num_tokens`` tokens, to the policy."""
        self._policy.passed(pass_time, num_tokens, num_steps)

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
        *,
        gently: bool,
    ) -> None:
        self._limits = limits
        self._unit = unit
        self._block_size = unit.pool.block_size
        self._running = queue.running
        self._waiting = queue.waiting
        self._room = room
        self._hopeless = hopeless  # could not be admitted last time, and nothing has changed
        self._gently = gently
        self._num_admitted = 0
        self.served: list[Entry[Sequence]] = []
        self.refused: Sequence | None = None

    def shares(self) -> list[Share]:
        shares: list[Share] = []
        budget = self._limits.chunk_tokens
        places = self._limits.max_running or inf
        while budget > 0 and places > 0:
            entry = self._next()
            if entry is None:
                break
            sequence = entry.candidate
            if sequence.stage is Stage.WAITING and not self._admit(sequence):
                continue
            if sequence.stage is Stage.SWAPPING_IN:  # its next token is computed in the pass after
                budget, places = budget - 1, places - 1
                continue
            item = self._item(sequence, budget)
            if item is not None:
                shares.append((item, sequence))
                self.served.append(entry)
                budget -= len(item.token_ids)
                places -= 1
        return shares

    def _next(self) -> Entry[Sequence] | None:
        """Return the best request that has not had its turn."""
        running, room, place = self._running, self._room, None
        while room.turn < room.end:
            place = running[room.turn]
            candidate = place[2].candidate
            if candidate.stage is Stage.RUNNING and not (
                self._gently and candidate.is_full(self._limits.max_len)
            ):
                break
            room.turn, place = room.turn + 1, None
        if room.is_open and self._num_admitted < len(self._waiting):
            waiting = self._waiting[self._num_admitted]
            if room.yielded is not None and room.yielded < waiting:
                room.is_open = False
            elif place is None or waiting < place:
                return waiting[2]
        if place is None:
            return None
        room.turn += 1
        return place[2]

    def _admit(self, sequence: Sequence) -> bool:
        if self._room.admit(sequence, is_hopeless=sequence is self._hopeless):
            self._num_admitted += 1
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
        )
