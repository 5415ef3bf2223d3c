"""Drawing from what was seen: values, each with its own probability."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from headway.errors import invalid


@dataclass(frozen=True, slots=True)
class Empirical:
    """``cumulative``: the weights' running sums; (n,) both."""

    values: tuple[float, ...]
    cumulative: tuple[float, ...]

    def __call__(self, rng: random.Random) -> float:
        """Draw one of the values."""
        place = bisect_right(self.cumulative, rng.random() * self.cumulative[-1])
        return self.values[min(place, len(self.values) - 1)]


def empirical(values: Sequence[float], weights: Iterable[float] | None = None) -> Empirical:
    """``weights``: as many as values (n,), 0 or more, their sum over 0; without them all alike."""
    found = [1.0] * len(values) if weights is None else [float(weight) for weight in weights]
    if len(found) != len(values):
        raise invalid("weights", len(found), f"as many as values ({len(values)})")
    for name, numbers in (("values", values), ("weights", found)):
        for number in numbers:
            if not 0 <= number < math.inf:
                raise invalid(name, number, "finite numbers, 0 or more each")
    kept = [(v, w) for v, w in zip(values, found, strict=True) if w]  # nothing of weight 0
    if not kept:
        raise invalid("the sum of weights", 0, "over 0")
    return Empirical(tuple(v for v, _ in kept), tuple(accumulate(w for _, w in kept)))
