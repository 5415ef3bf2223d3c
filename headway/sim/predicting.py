"""The time of predictions from hidden states, in the passes that they are made in."""

from __future__ import annotations

from collections import Counter, deque

from headway.forward_pass import ForwardPass
from headway.sim.device import Pace


class PredictingPace:
    """A pace that adds ``seconds`` for each prediction of a pass; ``pace``: the machine's own.

    ``blocks_per_unit`` tells an item's DP unit from its block table. Units predict beside each
    other, and the pass waits for the one with the most to predict.
    """

    def __init__(self, seconds: float, blocks_per_unit: int, pace: Pace | None) -> None:
        self._seconds = seconds
        self._blocks_per_unit = blocks_per_unit
        self._pace = pace
        self._predicted: deque[int] = deque()  # by the passes that have not begun, in order

    def note(self, forward_pass: ForwardPass) -> None:
        """Note a pass that the device is about to take."""
        items = (forward_pass.items[place] for place in forward_pass.hidden)
        by_unit = Counter(item.block_table[0] // self._blocks_per_unit for item in items)
        self._predicted.append(max(by_unit.values(), default=0))

    def __call__(self, work: float, has_prompts: bool) -> float:
        """Return what the next pass takes that should take so long, seconds."""
        work += self._seconds * self._predicted.popleft()
        return work if self._pace is None else self._pace(work, has_prompts)
