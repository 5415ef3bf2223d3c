"""The burst ratio of traffic: the share of input tokens that gateways label as burst."""

from __future__ import annotations

from math import exp

from headway.cost.costs import Constant, Source
from headway.policies.readers import chosen
from headway.policies.scaling.protocol import Rates

DEFAULT = 0.1
"""While nothing is known."""
_LEAST_SECONDS = 600.0
"""Seconds of traffic before a measurement counts: the detector's own mean needs a minute."""
_MEMORY = 3600.0
"""Seconds after which traffic counts a third."""
_LONGEST = 10.0
"""Most seconds that one figure stands for."""
_DRIFT = 1.25


class BurstRatio:
    """The ratio as given, or as measured over the last hour; adopted when it drifts by a quarter.

    The number of convertible decoders follows it, and that must not swing.
    """

    def __init__(self, given: float | None = None) -> None:
        self.constant = chosen("burst ratio", given, None, Source.DEFAULT, DEFAULT)
        self._seen_at: float | None = None
        self._seconds = self._all = self._burst = 0.0

    def observe(self, rates: Rates, *, now: float) -> bool:
        """Take the rates of now, s; return whether another ratio was adopted."""
        since = 0.0 if self._seen_at is None else now - self._seen_at
        self._seen_at = now
        burst, seconds = rates.burst_tokens_per_s, min(max(since, 0.0), _LONGEST)
        if burst is None or self.constant.source is Source.GIVEN:
            return False
        kept = exp(-seconds / _MEMORY)
        self._all = kept * self._all + rates.input_tokens_per_s * seconds
        self._burst = kept * self._burst + burst * seconds
        self._seconds += seconds if rates.input_tokens_per_s > 0 else 0.0
        if self._seconds < _LEAST_SECONDS:
            return False
        found, used = min(self._burst / self._all, 1.0), self.constant
        if used.source is Source.MEASURED and not _has_drifted(used.value, found):
            return False
        self.constant = Constant(used.name, found, Source.MEASURED)
        return True


def _has_drifted(used: float, found: float) -> bool:
    if used == 0.0 or found == 0.0:
        return used != found
    return not 1 / _DRIFT < found / used < _DRIFT
