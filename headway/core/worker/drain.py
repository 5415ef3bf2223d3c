"""A worker that lets go of its work: what it hands back, who can move, and another role."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headway.cluster import Role
from headway.core.worker.sequence import SequenceState, Stage
from headway.core.worker.state import WorkerState
from headway.messages import ChangeRole, Drain, HandedBack, HeldRequest
from headway.request import StreamKey


def give_back(state: WorkerState, keys: Iterable[StreamKey]) -> HandedBack:
    """Let go of those of these requests of which nothing has been computed."""
    returned: list[StreamKey] = []
    for key in keys:
        sequence = state.find(key)
        if sequence is not None and not _has_begun(sequence):
            state.units[sequence.unit].remove(sequence)
            state.has_freed_blocks = True  # the load has changed, and no pass tells it
            returned.append(key)
    return HandedBack(tuple(returned))


def _has_begun(sequence: SequenceState) -> bool:
    """A preempted one has, though its KV may be gone."""
    is_new = sequence.stage is Stage.WAITING and not sequence.num_preemptions
    return not is_new or sequence.num_computed > 0


def told_to_move(state: WorkerState) -> list[HeldRequest]:
    """Who can move since the last report; each is told of once."""
    ready = [
        sequence
        for unit in state.units
        for sequence in unit.sequences.values()
        if sequence.decoding and sequence.stage in (Stage.RUNNING, Stage.WAITING)
        if not (sequence.is_told or sequence.is_over)
    ]
    for sequence in ready:
        sequence.is_told = True
    return [sequence.held() for sequence in ready]


def let_go(state: WorkerState, event: Drain | ChangeRole) -> None:
    """What runs here, or what is not of the new role, is to run elsewhere."""
    state.lets_go = True
    if isinstance(event, ChangeRole):
        _change_role(state, event.role)


def _change_role(state: WorkerState, role: Role) -> None:
    """From now on a prompt that has been computed waits for its handoff, or decodes here.

    Who decodes here already goes on, whatever the role: the scheduler moves it where it belongs.
    """
    state.info = replace(state.info, role=role)
    for unit in state.units:
        for sequence in unit.sequences.values():
            sequence.hands_off = not role.decodes and _is_prompt(sequence)
            if role.decodes and sequence.stage is Stage.HANDOFF and not sequence.moving:
                unit.move(sequence, Stage.RUNNING)


def _is_prompt(sequence: SequenceState) -> bool:
    """Whether its prompt waits; one that is in a pass may be in the next one already."""
    num_drawn = len(sequence.output) - len(sequence.request.output_token_ids)
    waits = sequence.stage is not Stage.ARRIVING and not sequence.num_passes
    return waits and not sequence.decoding and not num_drawn
