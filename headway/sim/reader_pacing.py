"""The instants at which a paced reader is shown each token, from those at which they came.

The simulator's stand-in for the gateway's pacers: the same policy, without an event a token.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.policies.pacing import Pacing


@runtime_checkable
class ClosedFormPacing(Protocol):
    """A pacing policy that says at once when each token of an answer is due."""

    def due_at(
        self, came_at: NDArray[np.float64], tpot: float | None = None
    ) -> NDArray[np.float64]:
        """Return the earliest instant of each token, (n,), for tokens that came so, (n,).

        ``tpot``: seconds that the reader takes for one; None: as the policy says.
        """


def display_times(
    pacing: Pacing, came_at: NDArray[np.float64], tpot: float | None = None
) -> NDArray[np.float64]:
    """Return when each token of a finished answer is shown, (n,); the end releases the rest.

    ``tpot``: seconds that its class promises for a token; None: as the policy says.
    """
    if not len(came_at):
        return came_at
    if isinstance(pacing, ClosedFormPacing):
        due_at = pacing.due_at(came_at, tpot)
        return np.asarray(np.minimum(np.maximum(came_at, due_at), came_at[-1]))
    return _replayed(pacing, came_at, tpot)


def _replayed(
    pacing: Pacing, came_at: NDArray[np.float64], tpot: float | None
) -> NDArray[np.float64]:
    """Return what a pacer of this policy does, token by token."""
    pace, shown_at = pacing.pace(tpot), list[float]()
    for at in came_at.tolist():
        while (due_at := pace.due_at) is not None and due_at < at:
            count = pace.release(now=due_at)
            if not count:
                break
            shown_at += [due_at] * count
        pace.arrived(1, now=at)
        shown_at += [at] * pace.release(now=at)
    return np.array(shown_at + [float(came_at[-1])] * (len(came_at) - len(shown_at)))
