"""``dual-signal``: requests/s and input tokens/s against their running means (TokenScale).

Sections II-C and IV-A; ``docs/tokenscale.md`` says what the paper leaves open.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import log

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.burst.protocol import Label

_MOST_KEPT = 65_536
_SAME_INSTANT = 1e-6  # seconds: what an instant since the epoch resolves
_LEAST_IN_MEAN = 30
_LONGEST_MEAN = 10  # windows
_FIRST_SECONDS = 1.0
_LEAST_DEPTH = 3.0


@dataclass(frozen=True, slots=True)
class DualSignalParams(Bounded):
    """``mean_window``: seconds of the running mean, ten times that for sparse traffic.

    ``factor``: by which the mean may be exceeded; 1 marks all that is above the mean, as in the
    paper's figure. ``chance``: share of steady traffic (Poisson) that may be labelled by chance.
    """

    mean_window: float = between(1, 86_400, default=60.0)
    factor: float = between(1, 100, default=1.5)
    chance: float = between(0.001, 0.5, default=0.01)

    @property
    def depth(self) -> float:
        """Requests that traffic may run ahead of ``factor`` × the mean before any is burst.

        A buffer of this depth, drained so fast, loses the share ``chance`` of steady traffic
        (reflected Brownian motion: (f - 1) / (e^(2 (f - 1) depth) - 1)).
        """
        ahead = self.factor - 1
        depth = log(1 + ahead / self.chance) / (2 * ahead) if ahead > 1e-9 else 0.5 / self.chance
        return max(depth, _LEAST_DEPTH)


class SlidingSum:
    """Requests and tokens of the last ``window`` seconds; O(1) an arrival.

    The last 30 requests stay for ten windows. Exact up to 65,536 arrivals; beyond, neighbours are
    counted as of one instant.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._arrivals: deque[tuple[float, int, int, int]] = deque()  # at, and the three sums
        self.num_requests = 0
        self.num_tokens = 0
        self.num_squares = 0
        """Sum of the squares of the requests' tokens."""

    @property
    def num_kept(self) -> int:
        """Arrivals that it remembers."""
        return len(self._arrivals)

    def span(self, *, now: float) -> float:
        """Return the seconds that the sums are of, had there always been traffic."""
        return max(self._window, now - self._arrivals[0][0]) if self._arrivals else self._window

    def add(self, num_tokens: int, *, now: float) -> None:
        """Add a request."""
        self.num_requests += 1
        self.num_tokens += num_tokens
        self.num_squares += num_tokens**2
        if len(self._arrivals) < _MOST_KEPT:
            self._arrivals.append((now, 1, num_tokens, num_tokens**2))
        else:
            at, num_requests, tokens, squares = self._arrivals[-1]
            merged = num_requests + 1, tokens + num_tokens, squares + num_tokens**2
            self._arrivals[-1] = at, *merged

    def forget(self, *, now: float) -> None:
        """Let go of what is too old."""
        oldest = now - self._window + _SAME_INSTANT
        oldest_of_all = now - _LONGEST_MEAN * self._window + _SAME_INSTANT
        while self._arrivals:
            at, num_requests, num_tokens, num_squares = self._arrivals[0]
            is_sparse = self.num_requests - num_requests < _LEAST_IN_MEAN
            if at > (oldest_of_all if is_sparse else oldest):
                return
            self._arrivals.popleft()
            self.num_requests -= num_requests
            self.num_tokens -= num_tokens
            self.num_squares -= num_squares


class DualSignal:
    """A detector that labels what exceeds the running mean of requests/s or tokens/s, no more.

    Each signal is a bucket that unlabelled requests fill and ``factor`` × the mean drains. A
    request that finds more in it than the depth is burst. So over any time, short or long, no more
    than the allowance and one depth goes unlabelled, and chance alone hardly ever fills it.
    """

    labels = True

    def __init__(self, params: DualSignalParams | None = None) -> None:
        self._params = params or DualSignalParams()
        self._depth = self._params.depth
        self._all = SlidingSum(self._params.mean_window)
        self._began_at: float | None = None
        self._now = 0.0
        self._requests = self._tokens = 0.0  # ahead of the allowance

    def arrived(self, num_input_tokens: int, *, now: float) -> Label:
        """Return the label; a clock that went back stands still."""
        if self._began_at is None:
            self._began_at = self._now = now
        now = max(now, self._now)
        self._all.add(num_input_tokens, now=now)
        self._all.forget(now=now)
        if now - self._began_at < _FIRST_SECONDS:  # no mean yet
            self._now = now
            return Label(False, "", 0.0, self._depth)
        self._drain(now - self._began_at, now)
        label = self._judge()
        if not label.is_burst:
            self._requests += 1
            self._tokens += num_input_tokens
        return label

    def _drain(self, age: float, now: float) -> None:
        share = self._params.factor * (now - self._now) / min(age, self._all.span(now=now))
        self._requests = max(0.0, self._requests - share * self._all.num_requests)
        self._tokens = max(0.0, self._tokens - share * self._all.num_tokens)
        self._now = now

    def _judge(self) -> Label:
        """Judge by what was there before; sizes that differ widely take deeper a bucket."""
        if self._requests > self._depth:
            return Label(True, "requests", self._requests, self._depth)
        size = self._all.num_squares / max(1, self._all.num_tokens)
        if self._tokens > self._depth * size:
            return Label(True, "tokens", self._tokens, self._depth * size)
        return Label(False, "", self._requests, self._depth)


ANSWER = Answer("dual-signal", DualSignal, "TokenScale, sections II-C and IV-A", DualSignalParams)
