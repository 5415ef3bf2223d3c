"""A decode batch as one clock: a request is looked at only when something concerns it.

While a batch only decodes, each request computes one token a step. So the batch needs a clock that
counts steps, sums over its requests (``batch_sums.py``), and a log of its passes. A request's own
state stands as of the last look at it; a look reads from the log what has happened since. Joins and
ends cost what changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple

from headway.core.worker.lifecycle import Stage
from headway.core.worker.reading import ReadTokens
from headway.core.worker.sequence import Sequence
from headway.core.worker.state import WorkerState
from headway.cost.pass_time import Share
from headway.forward_pass import PLAIN, PassItem, PassResult
from headway.policies.batching.queue import Entry
from headway.request import StreamKey
from headway.sim.batch_sums import BatchSums

_LONGEST_LOG = 1024
"""Passes after which every request is looked at, so that the log may begin anew."""


class LoggedPass(NamedTuple):
    """A pass that has ended: what each request drew, the seconds, the clock's step at its end."""

    drawn: ReadTokens
    seconds: float
    step: int


class ClockedRequest:
    """A request of the batch, and the last look at it."""

    __slots__ = ("due_step", "entry", "num_held", "place", "sequence", "step")

    def __init__(self, entry: Entry[Sequence], step: int, place: int) -> None:
        self.entry = entry
        self.sequence = entry.candidate
        self.step = step
        """The clock's step at the last look."""
        self.place = place
        """Passes in the log at the last look."""
        self.num_held = len(self.sequence.kv.blocks)
        self.due_step: float = inf
        """Step at which it is to be looked at again."""


class DecodeClock:
    """The batch of one worker; its DP units are in lock-step."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._batches = [BatchSums(unit.pool) for unit in state.units]
        self._step = 0
        self._log: list[LoggedPass] = []
        self._members: dict[StreamKey, ClockedRequest] = {}
        self._ends: list[tuple[float, int, ClockedRequest]] = []
        self._checks: list[tuple[float, int, ClockedRequest]] = []
        self._num_pushed = 0  # breaks ties in the heaps
        self._synced: list[ClockedRequest] = []
        self._left: list[StreamKey] = []

    def __contains__(self, key: StreamKey) -> bool:
        return key in self._members

    def __len__(self) -> int:
        return len(self._members)

    # --- joining and leaving ----------------------------------------------------------

    def join(self, entries: Iterable[Entry[Sequence]]) -> None:
        """Take in requests; they are looked at when their first pass ends."""
        for entry in entries:
            sequence = entry.candidate
            member = ClockedRequest(entry, self._step, len(self._log))
            self._members[sequence.key] = member
            unit, kv = self._state.units[sequence.unit], sequence.kv
            self._batches[unit.unit].add(kv.num_computed, member.num_held, self._step)
            unit.apart.pop(sequence.key, None)
            left = sequence.num_left(self._state.max_len)
            self._num_pushed += 1
            heappush(self._ends, (self._step + left, self._num_pushed, member))
            self._schedule_check(member, soon=True)

    def begin(self) -> None:
        """Let the units' loads be counted here."""
        for unit, batch in zip(self._state.units, self._batches, strict=True):
            unit.batch = batch

    def release_all(self) -> list[Entry[Sequence]]:
        """Look at each request and let go of all; return them in the order of service."""
        members = self._in_order(self._members.values())
        for member in members:
            self._sync(member)
            self._state.send_late(member.sequence)
            unit = self._state.units[member.sequence.unit]
            unit.apart[member.sequence.key] = member.sequence
        for unit in self._state.units:
            unit.batch = None
        return [member.entry for member in members]

    def _in_order(self, members: Iterable[ClockedRequest]) -> list[ClockedRequest]:
        return sorted(members, key=lambda m: (m.sequence.unit, m.entry.rank, m.sequence.key))

    # --- passes -----------------------------------------------------------------------

    def works(self) -> list[Share]:
        """Return what each DP unit with requests has in the next step."""
        return [batch.work() for batch in self._batches if batch.num_requests]

    def steps(self, most: int) -> int:
        """Return the number of steps of a pass, at most ``most``, and set their blocks aside.

        All requests continue until its end, and there are blocks for as many steps. An offer that
        needs some of these blocks meanwhile has the pass cut.
        """
        while self._ends and self._is_gone(self._ends[0][2]):
            heappop(self._ends)
        if most > 1 and self._ends:
            most = min(most, int(self._ends[0][0]) - self._step)
        for batch in self._batches:
            most = batch.steps_within(self._step, most) if most > 1 else most
        most = max(most, 1)
        self.cut(most)
        return most

    def growth(self, unit: int) -> int:
        """Return the blocks that a unit's requests need for their next step."""
        batch = self._batches[unit]
        return batch.missing(self._step, 1) - batch.missing(self._step, 0)

    def cut(self, num_steps: int) -> None:
        """Set aside the blocks of so many steps of the pass in flight, and no others."""
        for batch in self._batches:
            batch.promise(self._step, num_steps)

    def take_left(self) -> list[StreamKey]:
        """Return and clear the requests that have left since the last call."""
        left, self._left = self._left, []
        return left

    def complete(self, result: PassResult, now: float) -> list[tuple[PassItem, Sequence]]:
        """Note the end of a pass; return requests to look at, in order, as before the pass."""
        self._synced = synced = self._in_order(self._due(result))
        for member in synced:
            self._sync(member)
        num_steps = result.num_steps
        for batch in self._batches:
            batch.advance(self._step, num_steps)
        self._step += num_steps
        seconds = num_steps * result.pass_time
        self._log.append(
            LoggedPass(ReadTokens(num_steps, result.pass_time, now), seconds, self._step)
        )
        for member in synced:
            member.step, member.place = self._step, len(self._log)
            self._grant(member, member.sequence.kv.num_computed + num_steps)
        return [(pass_item(member.sequence), member.sequence) for member in synced]

    def complete_all(
        self, result: PassResult, in_pass: Iterable[tuple[PassItem, Sequence]]
    ) -> None:
        """Note the end of a pass whose requests are all to be looked at."""
        for item, sequence in in_pass:
            pool = self._state.units[sequence.unit].pool
            pool.redeem(sequence.kv.blocks, item.start + result.num_steps)
        for unit in self._state.units:
            unit.pool.promise(0)

    def settle(self) -> None:
        """Let go of requests that have ended with the pass."""
        for member in self._synced:
            sequence = member.sequence
            if sequence.ended is None and sequence.stage is Stage.RUNNING:
                continue
            batch = self._batches[sequence.unit]
            batch.remove(sequence.kv.num_computed, member.num_held, self._step)
            del self._members[sequence.key]
            self._left.append(sequence.key)
        if len(self._log) >= _LONGEST_LOG:
            self._log.clear()
            for member in self._members.values():
                member.place = 0
        self.cut(0)

    def _due(self, result: PassResult) -> Iterable[ClockedRequest]:
        """Return the requests that the end of this pass concerns."""
        if len(self._log) + 1 >= _LONGEST_LOG:
            return self._members.values()
        step = self._step + result.num_steps
        due = {sampled.key: self._members[sampled.key] for sampled in result.sampled}
        for heap in (self._ends, self._checks):
            while heap and heap[0][0] <= step:
                at, _, member = heappop(heap)
                if not self._is_gone(member) and (heap is self._ends or member.due_step == at):
                    due[member.sequence.key] = member
        return due.values()

    def _is_gone(self, member: ClockedRequest) -> bool:
        return self._members.get(member.sequence.key) is not member

    # --- the state of single requests -------------------------------------------------

    def synced(self, unit: int) -> list[Entry[Sequence]]:
        """Return the requests of a unit that the end of the last pass concerned."""
        return [member.entry for member in self._synced if member.sequence.unit == unit]

    def schedule_checks(self) -> None:
        """Note when to look again at those that have been looked at, now that they are ranked."""
        for member in self._synced:
            if not self._is_gone(member):
                self._schedule_check(member)
        self._synced = []

    def sync(self) -> None:
        """Look at every request, as of the end of the last pass."""
        self._synced = list(self._members.values())
        for member in self._synced:
            self._sync(member)

    def _schedule_check(self, member: ClockedRequest, *, soon: bool = False) -> None:
        """Note when to look at it again: when its rank expires, or its estimate."""
        sequence = member.sequence
        num_attained = sequence.kv.num_computed - sequence.num_cached_tokens
        until = member.entry.until_tokens - num_attained
        until = 1 if soon else min(until, self._state.predictions.due_in(sequence))
        if until < inf:
            member.due_step = float(self._step + max(1, ceil(until)))
            self._num_pushed += 1
            heappush(self._checks, (member.due_step, self._num_pushed, member))

    def _sync(self, member: ClockedRequest) -> None:
        """Let its own state be as of the end of the last pass."""
        passes = self._log[member.place :]
        if not passes:
            return
        sequence, num_tokens = member.sequence, self._step - member.step
        num_before = len(sequence.output) - member.step
        ends = [num_before + each.step for each in passes]
        member.step, member.place = self._step, len(self._log)
        for each in passes:
            sequence.served += each.seconds
        self._state.readers.read_on(sequence, [each.drawn for each in passes])
        sequence.output.extend([PLAIN] * num_tokens)
        sequence.num_unsent += num_tokens
        num_later = passes[-1].drawn.num_tokens - 1
        sequence.computed(num_tokens - num_later)
        self._grant(member, sequence.kv.num_computed + num_later)
        self._state.units[sequence.unit].cache(sequence)  # as after the last pass's first step
        sequence.computed(num_later)
        self._state.predictions.sync(sequence, ends)

    def _grant(self, member: ClockedRequest, num_tokens: int) -> None:
        """Move the blocks for its tokens from those set aside to its own table."""
        sequence = member.sequence
        blocks, unit = sequence.kv.blocks, self._state.units[sequence.unit]
        unit.pool.redeem(blocks, num_tokens)
        self._batches[unit.unit].granted(len(blocks) - member.num_held)
        member.num_held = len(blocks)


def pass_item(sequence: Sequence) -> PassItem:
    """Return a decoding request's share of a pass."""
    request, kv, output = sequence.request, sequence.kv, sequence.output
    newest = (output[-1],) if output else (request.prompt_token_ids[-1],)
    return PassItem(
        sequence.key,
        newest,
        kv.num_computed,
        kv.blocks,
        True,
        request.sampling,
        request.prompt_token_ids,
        output,
        request.standing.tenant,
    )
