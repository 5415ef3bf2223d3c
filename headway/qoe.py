"""QoE: how much of the timeline that a reader expects was delivered, 0 to 1 (Andes; PASCAL).

A reader takes ``tpot`` seconds a token. Token k is expected at ``e_k = start + k · tpot`` and
digested at ``d_k = max(t_k, d_(k-1) + tpot, e_k)``, where ``t_k`` is its delivery. QoE is the area
under the curve of digested tokens over that under the curve of expected ones, up to the moment
when the last token should have been digested. That end does not move: were it when the last token
*was* digested, delivering that one later would raise the QoE.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.errors import require_over

Floats = NDArray[np.float64]
VIOLATION = 0.95
"""Below this a reader was let down."""


def qoe(instants: Floats, tpot: float, *, start: float | None = None) -> float:
    """Of answering tokens delivered at ``instants``, (n,) ascending, seconds; 0 for none.

    ``start``: when the first one was expected, arrival plus the TTFT target; None counts from
    the first one on, so that only its pace is judged. HeadwayError for a ``tpot`` of 0 or less.
    """
    require_over("tpot", tpot, 0)
    if not len(instants):
        return 0.0
    pace = tpot * np.arange(len(instants))
    begin = float(instants[0]) if start is None else start
    # d_k − e_k is the latest delivery so far, each brought to the first token's clock.
    lag = np.maximum(np.maximum.accumulate(instants - begin - pace), 0.0)
    expected = tpot * len(instants) - pace
    return float(np.sum(np.maximum(expected - lag, 0.0)) / np.sum(expected))
