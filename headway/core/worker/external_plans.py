"""The plans of an engine that plans its own passes and shows them: what a worker learns of each.

With them its loads, its ends of passes and what it gives back are exact, as with an engine of ours.
"""

from __future__ import annotations

from headway.core.worker.lifecycle import Event, Stage
from headway.core.worker.news import FOR_OTHERS, OTHERS_GREW
from headway.core.worker.room import Preemptions
from headway.core.worker.sequence import Sequence
from headway.core.worker.unit import WorkerUnit
from headway.cost.pass_time import Share as Work
from headway.engine import Computed, PassPlan


def follow(unit: WorkerUnit, plan: PassPlan, counts: Preemptions) -> Work:
    """Note who lost its KV and who computed what; return what that cost the engine."""
    for key, is_voluntary in plan.preempted:
        sequence = unit.sequences.get(key)
        if sequence is not None and sequence.stage is Stage.RUNNING:
            cause = FOR_OTHERS if is_voluntary else OTHERS_GREW
            unit.preempt(sequence, voluntary=is_voluntary, cause=cause)
            counts.num_voluntary += is_voluntary
            counts.num_forced += not is_voluntary
    work = Work()
    for computed in plan.computed:
        sequence = unit.sequences.get(computed.key)
        if sequence is not None:
            work = plus(work, _compute(unit, sequence, computed))
    return work


def _compute(unit: WorkerUnit, sequence: Sequence, computed: Computed) -> Work:
    start, count, kv = computed.start, computed.num_tokens, sequence.kv
    if sequence.stage is Stage.WAITING:
        _admit(unit, sequence, start)
    decodes = bool(sequence.output) and start + 1 == sequence.num_tokens
    sequence.computed(start + count - kv.num_computed)
    hold(unit, sequence, kv.num_computed)
    if sequence.num_fills is not None:
        sequence.num_fills += 1
    if not decodes:
        return Work(count, count * start, 0, 0)
    num_guessed = count - 1
    return Work(num_guessed, num_guessed * start, 1, start + 1)


def _admit(unit: WorkerUnit, sequence: Sequence, num_cached: int) -> None:
    """Begin a request behind what the engine had cached of it."""
    kv = sequence.kv
    kv.num_computed = num_cached
    if not sequence.attained_tokens:
        sequence.num_cached_tokens = max(num_cached, sequence.num_cached_tokens)
    if not sequence.num_preemptions:
        kv.num_hit_tokens = num_cached
        unit.prefix_counts.num_asked_tokens += sequence.num_tokens
        unit.prefix_counts.num_hit_tokens += num_cached
    unit.move(sequence, Event.ADMITTED)


def hold(unit: WorkerUnit, sequence: Sequence, num_tokens: int) -> None:
    """Count a request's blocks; an engine that has more of them than it tells is not held up."""
    blocks, pool = sequence.kv.blocks, unit.pool
    most = (len(blocks) + pool.num_free) * pool.block_size
    pool.grow(blocks, min(num_tokens, most))


def plus(one: Work, other: Work) -> Work:
    """Return the work of both."""
    return Work(*(a + b for a, b in zip(one, other, strict=True)))
