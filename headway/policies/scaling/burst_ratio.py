"""The burst ratio of traffic: the share of input tokens that gateways label as burst."""

from __future__ import annotations

from math import ceil, exp

from headway.cost.costs import Constant, Source
from headway.policies.readers import chosen
from headway.policies.scaling.protocol import Rates
from headway.policies.scaling.window import WindowPeak

DEFAULT = 0.1
"""While nothing is known."""
_LEAST_SECONDS = 600.0
"""Seconds of traffic before a measurement counts: the detector's own mean needs a minute."""
_MEMORY = 3600.0
"""Seconds after which traffic counts a third."""
_LONGEST = 10.0
"""Most seconds that one figure stands for."""
_DRIFT = 1.25
_MOST = 1e9  # instances: more than anybody has


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
        ratio, used = min(self._burst / self._all, 1.0), self.constant
        if used.source is Source.MEASURED and not _has_drifted(used.value, ratio):
            return False
        self.constant = Constant(used.name, ratio, Source.MEASURED)
        return True


def num_convertibles(max_decode: int, burst_ratio: float) -> int:
    """``⌈max decoders × burst ratio⌉``: at least 1 where bursts exist."""
    return ceil(max_decode * burst_ratio - 1e-9)


class Convertibles:
    """The number of convertible decoders, I_conv.

    A ratio that was given is taken for the offline profile's, and stands. Any other buys no more of
    them than the decoders, I_D, that the traffic of the last hour needed at most.
    """

    def __init__(self, max_decode: int, burst_ratio: float | None) -> None:
        self._max_decode = max_decode
        self._ratio = BurstRatio(burst_ratio)
        self._needed = WindowPeak(_MEMORY)

    @property
    def constant(self) -> Constant:
        """The burst ratio."""
        return self._ratio.constant

    @property
    def num(self) -> int:
        """I_conv; never 0 for measured traffic: the next burst comes unannounced."""
        ratio, needed = self._ratio.constant, self._needed.value
        wanted = num_convertibles(self._max_decode, ratio.value)
        if ratio.source is Source.GIVEN:
            return wanted
        least = min(int(ratio.source is Source.MEASURED), self._max_decode)
        most = wanted if needed is None else max(1, ceil(min(needed, _MOST) - 1e-9))
        return max(least, min(wanted, most))

    def observe(self, rates: Rates, needed: float, *, now: float) -> None:
        """Take the rates of now, s, and the decoders needed for them (with fractions)."""
        self._ratio.observe(rates, now=now)
        self._needed.add(needed, now=now)


def _has_drifted(used: float, measured: float) -> bool:
    if used == 0.0 or measured == 0.0:
        return used != measured
    return not 1 / _DRIFT < measured / used < _DRIFT
