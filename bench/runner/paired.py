"""The same requests under two systems: their values in pairs, and how sure a change of them is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from bench.serve.classes import Alone, as_served
from bench.serve.replay import ReplayedRequest
from headway.class_metrics import samples

Floats = NDArray[np.float64]
Values = tuple[Floats, Floats]
"""Values before and after, (n,) each, request by request."""

PairedSamples = Mapping[str, Values]
"""Values by class (``headway.class_metrics.samples``)."""

_NUM_DRAWS = 500


def paired(
    before: Sequence[ReplayedRequest], after: Sequence[ReplayedRequest], alone: Alone
) -> PairedSamples:
    """Return the values of requests that ended under both systems.

    A request is of the class that it has under the first: lengths may differ a little.
    """
    others = {each.planned.index: as_served(each, alone) for each in after}
    both = [
        (one, other)
        for each in before
        if (one := as_served(each, alone)) is not None
        and (other := others.get(each.planned.index)) is not None
    ]
    firsts = samples([one for one, _ in both])
    seconds = samples(
        [replace(other, num_reasoning_tokens=one.num_reasoning_tokens) for one, other in both]
    )
    columns_of = {}
    for name, values in firsts.items():
        pairs = [
            (one, other)
            for one, other in zip(values, seconds[name], strict=True)
            if one is not None and other is not None
        ]
        if pairs:
            columns = np.array(pairs, dtype=np.float64).T
            columns_of[name] = (columns[0], columns[1])
    return columns_of


def standard_error(pairs: Sequence[Values], share: float | None) -> float:
    """Return the standard error of the mean change over the pairs.

    The change of a pair is that of its requests' percentile ``share``, or of their mean for None.
    Pairs are drawn with replacement, and within each its requests, the same under both systems:
    what is common to a pair, and what one request suffers, both count.
    """
    rng = np.random.default_rng(len(pairs))
    changes = np.array([_drawn_changes(each, share, rng) for each in pairs])
    drawn = rng.integers(len(pairs), size=(_NUM_DRAWS, len(pairs)))
    which = rng.integers(_NUM_DRAWS, size=drawn.shape)
    spread = float(np.std(changes[drawn, which].mean(axis=1)))
    return spread * sqrt(len(pairs) / max(1, len(pairs) - 1))  # draws of few are too alike


def _drawn_changes(values: Values, share: float | None, rng: np.random.Generator) -> Floats:
    """Return the change in each of so many draws of a pair's requests, (draws,)."""
    rows = rng.integers(len(values[0]), size=(_NUM_DRAWS, len(values[0])))
    before, after = (
        each[rows].mean(axis=1) if share is None else np.quantile(each[rows], share, axis=1)
        for each in values
    )
    return np.asarray(after - before)
