"""What a worker's reports say of its units: loads, phases, and how long each request still runs."""

from __future__ import annotations

from dataclasses import replace
from math import nan

from headway.cluster import UnitLoad
from headway.core.worker.sequence import SequenceState, Stage
from headway.core.worker.state import WorkerState
from headway.core.worker.unit import UnitState
from headway.messages import LoadReport, RunningRequests
from headway.policies.rescheduling import Horizon, simulate_future
from headway.request import Phase

FRESH_TOKENS = 500
"""An answer's first quantum (PASCAL, Algorithm 2: ``a_i``)."""


def loads_with_phases(state: WorkerState, *, now: float) -> tuple[UnitLoad, ...]:
    """Every unit's load now, with ``r_i``, ``a_i`` and ``t_i`` of PASCAL."""
    return tuple(_with_phases(unit, now) for unit in state.units)


def _with_phases(unit: UnitState, now: float) -> UnitLoad:
    num_reasoning = num_fresh = 0
    is_on_schedule = True
    for sequence in unit.sequences.values():
        phase = sequence.phase
        if phase is not Phase.ANSWERING:
            num_reasoning += sequence.request.reasons
            continue
        num_fresh += sequence.num_phase_tokens < FRESH_TOKENS
        if not _is_on_schedule(sequence, now):
            is_on_schedule = False
    return replace(
        unit.load(),
        num_reasoning=num_reasoning,
        num_fresh_answering=num_fresh,
        is_on_schedule=is_on_schedule,
    )


def _is_on_schedule(sequence: SequenceState, now: float) -> bool:
    """Whether its reader has tokens in hand, or is about to be given the first."""
    if sequence.opens_answer:
        return sequence.running
    return sequence.in_hand_until >= now


def load_report(state: WorkerState, horizon: Horizon) -> LoadReport:
    """What runs on every unit, and the load that it will be."""
    return LoadReport(tuple(_running_requests(unit, horizon) for unit in state.units))


def _running_requests(unit: UnitState, horizon: Horizon) -> RunningRequests:
    running = [s for s in unit.sequences.values() if s.stage is Stage.RUNNING and s.decoding]
    num_tokens = tuple(s.num_computed for s in running)
    remaining = tuple(_remaining(s) for s in running)
    keys = tuple(s.key for s in running)
    future = simulate_future(num_tokens, remaining, horizon)
    return RunningRequests(unit.unit, keys, num_tokens, remaining, tuple(future.tolist()))


def _remaining(sequence: SequenceState) -> float:
    remaining = sequence.predicted_remaining
    return nan if remaining is None else remaining
