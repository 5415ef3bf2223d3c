"""The life of a request on a worker: its stages and the events that change them.

Only this file changes a stage. Other modules name an event, and the table gives the next stage; a
pair missing from the table is an error of ours. ``docs/architecture.md`` shows the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headway.request import FinishReason


class Stage(Enum):
    """The stage of a request on this worker."""

    WAITING = "holds no blocks; any KV that it has is in host memory"
    SWAPPING_OUT = "has lost its blocks; a pass copies its KV to host memory"
    SWAPPING_IN = "has blocks; its KV comes back during a pass, and it joins the next one"
    RUNNING = "has blocks and takes part in passes"
    PREFILLED = "keeps the KV of its prompt until the scheduler names a worker to decode it"
    LEAVING = "has stopped; the remainder of its KV is being sent to another worker"
    ARRIVING = "another worker is filling its blocks"
    ENDING = "draws no more tokens; a pass or a part of its move still reads its blocks"
    GONE = "is forgotten here, and its blocks are free"


class Event(Enum):
    """An event in the life of a request."""

    ADMITTED = "it gets blocks for all of its tokens"
    SWAPS_IN = "it gets blocks, and its KV comes back during the pass"
    PREEMPTED = "it loses its blocks and will compute its KV again"
    SWAPS_OUT = "it loses its blocks, and its KV goes to host memory"
    SWAPPED = "the copy has ended"
    KV_LOST = "the copy has failed: it will compute its KV again"
    PREFILLED = "its first token is drawn, and this worker does not decode"
    DEPARTS = "sending the remainder of its KV begins"
    RUNS_ON = "its KV is in its blocks: it has arrived, or continues here"
    WAITS_ON = "its KV is in host memory: it has arrived, or continues here"
    HOLDS_ON = "the transfer has failed: it keeps its KV for another one"
    ENDS = "it has ended, but its blocks are in use"
    RELEASED = "it has ended or is elsewhere, and nothing uses its blocks"


TRANSITIONS: Mapping[tuple[Stage, Event], Stage] = {
    (Stage.WAITING, Event.ADMITTED): Stage.RUNNING,
    (Stage.WAITING, Event.SWAPS_IN): Stage.SWAPPING_IN,
    (Stage.WAITING, Event.DEPARTS): Stage.LEAVING,
    (Stage.WAITING, Event.ENDS): Stage.ENDING,
    (Stage.WAITING, Event.RELEASED): Stage.GONE,
    (Stage.SWAPPING_OUT, Event.SWAPPED): Stage.WAITING,
    (Stage.SWAPPING_OUT, Event.KV_LOST): Stage.WAITING,
    (Stage.SWAPPING_OUT, Event.ENDS): Stage.ENDING,
    (Stage.SWAPPING_OUT, Event.RELEASED): Stage.GONE,
    (Stage.SWAPPING_IN, Event.SWAPPED): Stage.RUNNING,
    (Stage.SWAPPING_IN, Event.KV_LOST): Stage.WAITING,
    (Stage.SWAPPING_IN, Event.ENDS): Stage.ENDING,
    (Stage.RUNNING, Event.PREEMPTED): Stage.WAITING,
    (Stage.RUNNING, Event.SWAPS_OUT): Stage.SWAPPING_OUT,
    (Stage.RUNNING, Event.PREFILLED): Stage.PREFILLED,
    (Stage.RUNNING, Event.DEPARTS): Stage.LEAVING,
    (Stage.RUNNING, Event.ENDS): Stage.ENDING,
    (Stage.RUNNING, Event.RELEASED): Stage.GONE,
    (Stage.PREFILLED, Event.DEPARTS): Stage.LEAVING,
    (Stage.PREFILLED, Event.RUNS_ON): Stage.RUNNING,
    (Stage.PREFILLED, Event.PREEMPTED): Stage.WAITING,
    (Stage.PREFILLED, Event.SWAPS_OUT): Stage.SWAPPING_OUT,
    (Stage.PREFILLED, Event.RELEASED): Stage.GONE,
    (Stage.LEAVING, Event.RUNS_ON): Stage.RUNNING,
    (Stage.LEAVING, Event.WAITS_ON): Stage.WAITING,
    (Stage.LEAVING, Event.HOLDS_ON): Stage.PREFILLED,
    (Stage.LEAVING, Event.ENDS): Stage.LEAVING,
    (Stage.LEAVING, Event.RELEASED): Stage.GONE,
    (Stage.ARRIVING, Event.RUNS_ON): Stage.RUNNING,
    (Stage.ARRIVING, Event.WAITS_ON): Stage.WAITING,
    (Stage.ARRIVING, Event.ENDS): Stage.ARRIVING,
    (Stage.ARRIVING, Event.RELEASED): Stage.GONE,
    (Stage.ENDING, Event.ENDS): Stage.ENDING,
    (Stage.ENDING, Event.RELEASED): Stage.GONE,
}


@dataclass(slots=True, eq=False)
class Life:
    """The stage of a request, and the reasons that keep it here."""

    stage: Stage
    num_passes: int = field(default=0, init=False)
    """Passes in flight that include it (``flight.py`` counts)."""
    ended: FinishReason | None = field(default=None, init=False)
    """The reason why it draws no more tokens; it stays until nothing uses its blocks."""

    def advance(self, event: Event) -> None:
        """Go to the next stage; raise AssertionError if the table has none."""
        following = TRANSITIONS.get((self.stage, event))
        assert following is not None, f"{event.name} cannot happen to one that is {self.stage.name}"
        self.stage = following

    def end(self, reason: FinishReason, *, is_sent: bool = False) -> bool:
        """End for this reason, or an earlier one; return whether its blocks may be freed now.

        ``is_sent``: part of a move is in progress and has to be aborted first.
        """
        if self.ended is None:
            self.ended = reason
        is_held = is_sent or self.num_passes or self.stage in (Stage.LEAVING, Stage.ARRIVING)
        if is_held:
            self.advance(Event.ENDS)
        return not is_held
