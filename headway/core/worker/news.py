"""News of requests for their gateways: what happens to them here, beside their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headway.core.worker.lifecycle import Event, Stage
from headway.core.worker.sequence import Sequence
from headway.life.moments import Mark, MomentKind, way_to
from headway.request import Request

FOR_OTHERS = "a request that goes first needed its blocks"
AHEAD_OF_NEED = "blocks were freed ahead of need"
OTHERS_GREW = "other requests' KV grew"
IT_GREW = "its own KV grew, and others go first"

_TOLD: Mapping[Event, MomentKind] = {
    event: MomentKind[event.name] for event in Event if event.name in MomentKind.__members__
}
_CAME: Mapping[Stage, MomentKind] = {
    Stage.WAITING: MomentKind.QUEUED,
    Stage.ARRIVING: MomentKind.ARRIVING,
}


class NewMark(NamedTuple):
    """A mark that has no instant yet: it happened in the event that is being handled."""

    request: Request
    kind: MomentKind
    amount: int
    cause: str

    def at(self, now: float) -> Mark:
        """Return the mark of this instant."""
        return Mark(self.request.stream_id, self.kind, now, self.amount, self.cause)


class LifeNews:
    """Changes by the present event; nothing is collected unless ``is_on``."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self.marks: list[NewMark] = []

    def came(self, sequence: Sequence) -> None:
        """Note a request that is new here."""
        if self._is_on:
            self._add(sequence, _CAME[sequence.stage])

    def moved(self, sequence: Sequence, event: Event, cause: str, num_lost: int) -> None:
        """Note what has happened to a request; ``num_lost``: tokens of a preemption."""
        kind = _TOLD.get(event) if self._is_on else None
        if kind is None:
            return
        amount = num_lost
        if event is Event.ADMITTED or event is Event.SWAPPED:
            amount = sequence.num_remaining
            is_filling = amount > 1 or not sequence.output
            sequence.num_fills = 0 if is_filling and sequence.stage is Stage.RUNNING else None
        elif event is Event.DEPARTS and sequence.departure is not None:
            cause = way_to(sequence.departure.handoff.target_worker_id)
        self._add(sequence, kind, amount, cause)

    def drew(self, sequence: Sequence) -> None:
        """Note a drawn token: the first one since it got blocks ends its computing."""
        if sequence.num_fills is None:
            return
        self._add(sequence, MomentKind.COMPUTED, sequence.num_fills)
        sequence.num_fills = None
        if len(sequence.output) == 1 and sequence.length.total:
            self._add(sequence, MomentKind.PREDICTED, round(sequence.length.total))

    def _add(self, sequence: Sequence, kind: MomentKind, amount: int = 0, cause: str = "") -> None:
        self.marks.append(NewMark(sequence.request, kind, amount, cause))
