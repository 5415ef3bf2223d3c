"""Releasing a worker's requests: handing them back, reporting which can move, changing the role."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headway.cluster import Role
from headway.core.worker.lifecycle import Event, Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.state import WorkerState
from headway.messages import HandedBack, HeldRequest
from headway.request import StreamKey

_DECODE = (Stage.RUNNING, Stage.WAITING, Stage.SWAPPING_IN, Stage.SWAPPING_OUT)


def give_back(state: WorkerState, keys: Iterable[StreamKey]) -> HandedBack:
    """Release those of these requests of which nothing has been computed."""
    returned: list[StreamKey] = []
    for key in keys:
        sequence = state.find(key)
        if sequence is not None and not _has_begun(sequence):
            state.units[sequence.unit].remove(sequence)
            state.news.has_freed_blocks = True
            returned.append(key)
    return HandedBack(tuple(returned))


def _has_begun(sequence: Sequence) -> bool:
    """Return whether it was ever computed; a preempted one was, though its KV may be gone."""
    is_new = sequence.stage is Stage.WAITING and not sequence.num_preemptions
    return not is_new or sequence.kv.num_computed > 0


def newly_movable(state: WorkerState) -> list[HeldRequest]:
    """Return the requests that can move and that the scheduler does not know of."""
    ready = [
        sequence
        for unit in state.units
        for sequence in unit.sequences.values()
        if not sequence.is_told and sequence.stage in _DECODE
        if sequence.decoding and not sequence.hands_off
    ]
    for sequence in ready:
        sequence.is_told = True
    return [sequence.held() for sequence in ready]


def change_role(state: WorkerState, role: Role) -> None:
    """Take another role: computed prompts now wait for a handoff, or are decoded here.

    A request that decodes here continues: the scheduler moves it where it belongs.
    """
    state.info = replace(state.info, role=role)
    for unit in state.units:
        unit.take_role(state.info)
        for sequence in unit.sequences.values():
            sequence.hands_off = not role.decodes and _is_prompt(sequence)
            if role.decodes and sequence.stage is Stage.PREFILLED:
                unit.move(sequence, Event.RUNS_ON)


def _is_prompt(sequence: Sequence) -> bool:
    """Return whether its prompt waits; one that is in a pass may already be in the next one."""
    waits = sequence.stage is not Stage.ARRIVING and not sequence.num_passes
    return waits and not sequence.decoding and not sequence.num_drawn
