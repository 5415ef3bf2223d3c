"""The pace of a machine while its passes were measured, replayed from anywhere on.

Whatever else runs on its cores slows it down for a while. A factor of its own for each pass would
not tell: interruptions last, and a long pass meets more of them than a short one. So measured
passes in a row are one curve of the seconds that went by over the work that was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.errors import invalid


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPace:
    """Measured passes in a row: what each should have taken (``work``) and took, seconds, (n,).

    ``start``: where on the curve a replay begins, a share of it. Times are scaled to the work in
    all: a replay is as fast as the model on the whole.
    """

    work: Sequence[float]
    seconds: Sequence[float]
    start: float = 0.0
    _done: NDArray[np.float64] = field(init=False)
    _went: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.work) != len(self.seconds) or not len(self.work):
            raise invalid("seconds' length", len(self.seconds), f"{len(self.work)}, over 0")
        done = np.concatenate([[0.0], np.cumsum(self.work)])
        went = np.concatenate([[0.0], np.cumsum(self.seconds)])
        if not (min(self.work) > 0.0 < min(self.seconds) and np.isfinite(done[-1] * went[-1])):
            raise invalid("work and seconds", "not all over 0", "finite times over 0 s")
        object.__setattr__(self, "_done", done)
        object.__setattr__(self, "_went", went * (done[-1] / went[-1]))

    def replay(self, at: float = 0.0) -> Callable[[float], float]:
        """Return a function from work to the time it takes, s; each call goes on from the last.

        ``at``: how far behind ``start`` it begins, a share of the curve; it begins again at its
        end.
        """
        total = float(self._done[-1])
        place = ((self.start + at) % 1.0) * total

        def take(work: float) -> float:
            nonlocal place
            before, place = place, place + work
            return self._until(place) - self._until(before)

        return take

    def _until(self, place: float) -> float:
        total = float(self._done[-1])
        num_rounds, rest = divmod(place, total)
        return num_rounds * total + float(np.interp(rest, self._done, self._went))
