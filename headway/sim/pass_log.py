"""An instance's last passes, from which its clients' tokens get their instants."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from headway.sim.device import Steps
from headway.sim.records import Segment

_MOST = 4096
"""Passes kept at most; the newest half always is. A worker keeps no token for so long."""


class HeardPasses(NamedTuple):
    """The passes of one instance until its gateway hears of the tokens."""

    log: PassLog
    num_passes: int

    def last(self, count: int) -> list[Segment]:
        """Return when the newest ``count`` tokens of a request came that the last pass served."""
        return self.log.last(count, self.num_passes)


class PassLog:
    """The passes of one instance, oldest first; each gives a token to all that it serves.

    ``delay``: seconds from a pass to the gateway.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._passes: list[tuple[Segment, Steps]] = []
        self._num_dropped = 0

    def add(self, steps: Steps, num_steps: int) -> None:
        """Add a pass that has ended."""
        if len(self._passes) >= _MOST:
            del self._passes[: _MOST // 2]
            self._num_dropped += _MOST // 2
        if self._delay:
            steps = replace(steps, began_at=steps.began_at + self._delay)
        self._passes.append((_segment(steps, num_steps, 0), steps))

    def heard(self) -> HeardPasses:
        """Return the passes until now."""
        return HeardPasses(self, self._num_dropped + len(self._passes))

    def last(self, count: int, num_passes: int) -> list[Segment]:
        """Return the newest ``count`` tokens of the first ``num_passes`` passes."""
        segments: list[Segment] = []
        at = num_passes - self._num_dropped
        while count > 0:
            at -= 1
            segment, steps = self._passes[at]
            if segment.num_tokens > count:
                segment = _segment(steps, segment.num_tokens, segment.num_tokens - count)
            segments.append(segment)
            count -= segment.num_tokens
        segments.reverse()
        return segments


def _segment(steps: Steps, num_steps: int, skipped: int) -> Segment:
    """Return the tokens of a pass without the first ones."""
    step = steps.step + (skipped + 1) * steps.growth
    return Segment(num_steps - skipped, steps.ends_at(skipped + 1), step, steps.growth)
