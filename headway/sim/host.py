"""How long passes and messages take on the instances' hosts, or on the one that they share."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from headway.sim.device import Pace
from headway.sim.hop_costs import REQUEST_WINDOW, Beside, HopCosts
from headway.sim.kernel import Kernel
from headway.sim.pace import MeasuredPace

_APART = 0.6180339887  # of a pace's curve, between two instances: never the same place


class Host:
    """The pace of every instance, and the time of messages; ``num_busy`` says how many compute."""

    def __init__(
        self,
        kernel: Kernel,
        costs: HopCosts,
        measured: MeasuredPace | None,
        num_busy: Callable[[], int],
    ) -> None:
        self._kernel = kernel
        self._costs = costs
        self._measured = measured
        self._num_busy = num_busy
        self._came_at: deque[float] = deque()
        self._last_at: defaultdict[str, float] = defaultdict(float)

    def note_request(self) -> None:
        """Count a request that comes now."""
        if self._costs.cores:
            self._came_at.append(self._kernel.now)

    def after(self, stream: str, seconds: float, then: Callable[[], object]) -> None:
        """Let a message arrive so long after now, or later where instances keep the host busy.

        Messages of one stream arrive in the order in which they were sent.
        """
        if not self._costs.wait:
            self._kernel.after(seconds, then)
            return
        at = self._kernel.now + seconds + self._costs.wait * self._costs.num_late(self._num_busy())
        at = self._last_at[stream] = max(at, self._last_at[stream])
        self._kernel.at(at, then)

    def pace(self, number: int) -> Pace | None:
        """Return a new instance's pace; None where passes take what the profile says.

        ``number``: of instances that it joins.
        """
        own = self._measured.replay(_APART * number) if self._measured is not None else None
        if own is None and not self._costs.cores:
            return None

        def paced(work: float, has_prompts: bool) -> float:
            beside = Beside(has_prompts, 1 + self._num_busy(), self._requests_per_s())
            return self._costs.stretch(beside) * (own(work) if own else work)

        return paced

    def _requests_per_s(self) -> float:
        came_at = self._came_at
        while came_at and came_at[0] <= self._kernel.now - REQUEST_WINDOW:
            came_at.popleft()
        return len(came_at) / REQUEST_WINDOW
