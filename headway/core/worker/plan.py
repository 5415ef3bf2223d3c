"""Which tokens of which sequences one forward pass computes, under chunk and KV blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from headway.core.worker.sequence import SequenceState
from headway.core.worker.unit import UnitState
from headway.core.worker.unit_plan import Limits, UnitPlan
from headway.forward_pass import PassItem
from headway.policies.batching import Batching
from headway.policies.batching.queue import Entry, RankedQueue


@dataclass(slots=True)
class Preemptions:
    """Requests that lost their blocks: for better ones, and by others' KV growth.

    ``by_request``: of those that have completed, how many were preempted so often.
    """

    num_voluntary: int = 0
    num_forced: int = 0
    by_request: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Unit:
    """What is kept of a DP unit from pass to pass."""

    queue: RankedQueue[SequenceState]
    served: Sequence[Entry[SequenceState]] = ()
    refused: SequenceState | None = None
    refused_version: int = -1
    is_short: bool = False


class PassPlanner:
    """Plans each DP unit's share of a pass: the policy orders, the chunk and the pool bound.

    A sequence is admitted with blocks for all of its tokens and only while a watermark of
    blocks stays free for the growth of those that run (unless nothing runs). A better one that
    does not fit takes the blocks of those behind it, if the policy lets it and that is enough.
    Growth takes blocks from the end of the order: preempted, recomputed, never lost.
    """

    def __init__(self, batching: Batching, limits: Limits) -> None:
        self._policy = batching
        self._limits = limits
        self._units: dict[int, _Unit] = {}
        self.preemptions = Preemptions()

    def plan(self, unit: UnitState, *, now: float, gently: bool = False) -> list[PassItem]:
        """The unit's items, in the policy's order; marks the sequences as in the pass.

        ``gently``: nobody loses blocks to others.
        """
        kept = self._units.get(unit.unit)
        if kept is None:
            kept = self._units[unit.unit] = _Unit(RankedQueue(self._policy))
        self._take_in(unit, kept, now)
        plan = UnitPlan(self._limits, self._policy, unit, kept.queue, now=now, gently=gently)
        version = kept.queue.version
        items = plan.items(kept.refused if kept.refused_version == version else None)
        kept.served, kept.refused, kept.refused_version = plan.served, plan.refused, version
        kept.is_short = plan.is_short
        self.preemptions.num_voluntary += plan.num_voluntary
        self.preemptions.num_forced += plan.num_forced
        return items

    @property
    def is_short(self) -> bool:
        """Whether somebody found no room that a plan which may take blocks could make."""
        return any(kept.is_short for kept in self._units.values())

    def _take_in(self, unit: UnitState, kept: _Unit, now: float) -> None:
        """Bring the order up to date: only what has changed is looked at."""
        for key in unit.changed:
            sequence = unit.candidate(key)
            if sequence is not None:
                kept.queue.touch(sequence, now=now)
                continue
            kept.queue.discard(key)
            if key not in unit.sequences:
                self._policy.forget(key)
        unit.changed.clear()
        kept.queue.settle(kept.served, now=now)

    # --- several steps in one pass ----------------------------------------------------

    def most_steps(self, most: int) -> int:
        """How many steps the planned pass may have until the order could change who is in it."""
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
        """When, at the earliest, a rank that matters ages."""
        return min((kept.queue.due_at for kept in self._contended()), default=inf)

    def _contended(self) -> Iterable[_Unit]:
        """Units in which somebody is not served."""
        return (kept for kept in self._units.values() if len(kept.queue) > len(kept.served))

    # --- what the policy learns -------------------------------------------------------

    def passed(self, pass_time: float, num_tokens: int, num_steps: int) -> None:
        """Steps of ``pass_time`` seconds have ended, each over ``num_tokens`` tokens."""
        self._policy.passed(pass_time, num_tokens, num_steps)

    def completed(self, sequence: SequenceState, *, now: float) -> None:
        """Its last token has been drawn."""
        self.preemptions.by_request[sequence.num_preemptions] += 1
        self._policy.completed(sequence, now=now)

    def tune(self, gamma: float) -> None:
        """The pool's γ, 1/s."""
        self._policy.tune(gamma)
