"""``dual-signal``: requests/s and input tokens/s against their running means (TokenScale).

Sections II-C and IV-A; ``docs/tokenscale.md`` says what the paper leaves open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.errors import invalid
from headway.policies.answer import Answer
from headway.policies.burst.protocol import Label

_MOST_KEPT = 65_536
_SAME_INSTANT = 1e-6  # seconds: what an instant since the epoch resolves
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class DualSignalParams(Bounded):
    """``short_window``: seconds that count as now. ``mean_window``: of the running mean, longer.

    ``factor``: by which the mean may be exceeded; 1 marks all that is above the mean, as in the
    paper's figure.
    """

    short_window: float = between(0.01, 3600, default=1.0)
    mean_window: float = between(0.01, 86_400, default=60.0)
    factor: float = between(1, 100, default=1.5)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.mean_window <= self.short_window:
            raise invalid("mean_window", self.mean_window, f"over {self.short_window:g} s")


class SlidingSum:
    """Requests and tokens of the last ``window`` seconds; O(1) an arrival.

    Exact up to 65,536 arrivals a window; beyond, neighbours are counted as of one instant.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._arrivals: deque[tuple[float, int, int]] = deque()  # at, requests, tokens
        self.num_requests = 0
        self.num_tokens = 0

    @property
    def num_kept(self) -> int:
        """Arrivals that it remembers."""
        return len(self._arrivals)

    def add(self, num_tokens: int, *, now: float) -> None:
        """Add a request."""
        self.num_requests += 1
        self.num_tokens += num_tokens
        if len(self._arrivals) < _MOST_KEPT:
            self._arrivals.append((now, 1, num_tokens))
        else:
            at, num_requests, tokens = self._arrivals[-1]
            self._arrivals[-1] = at, num_requests + 1, tokens + num_tokens

    def forget(self, *, now: float) -> None:
        """Let go of what is as old as the window."""
        oldest = now - self._window + _SAME_INSTANT
        while self._arrivals and self._arrivals[0][0] <= oldest:
            _, num_requests, num_tokens = self._arrivals.popleft()
            self.num_requests -= num_requests
            self.num_tokens -= num_tokens


class DualSignal:
    """A detector that labels what exceeds the running mean of requests/s or tokens/s, no more.

    A request is burst if it and the unlabelled ones of the short window together are more than
    ``factor`` times what the mean brings in such a window. Where fewer than one request comes in
    it, the window is as long as the mean gap: one request of the mean size is never a burst.
    """

    labels = True

    def __init__(self, params: DualSignalParams | None = None) -> None:
        self._params = params or DualSignalParams()
        self._all = SlidingSum(self._params.mean_window)
        self._regular = SlidingSum(self._params.short_window)
        self._began_at: float | None = None
        self._now = 0.0

    def arrived(self, num_input_tokens: int, *, now: float) -> Label:
        """Return the label; a clock that went back stands still."""
        if self._began_at is None:
            self._began_at = self._now = now
        self._now = now = max(now, self._now)
        self._all.add(num_input_tokens, now=now)
        self._all.forget(now=now)
        self._regular.forget(now=now)
        label = self._judge(num_input_tokens, now)
        if not label.is_burst:
            self._regular.add(num_input_tokens, now=now)
        return label

    def _judge(self, num_input_tokens: int, now: float) -> Label:
        params, began_at = self._params, self._began_at
        assert began_at is not None, "the first arrival has been seen"
        window = params.short_window
        span = min(max(now - began_at, window), params.mean_window)
        # The means' share in a window, which is at least the mean gap between two requests.
        share = _ROUNDING * params.factor * max(window / span, 1 / self._all.num_requests)
        requests = self._regular.num_requests + 1
        tokens = self._regular.num_tokens + num_input_tokens
        most_requests = share * self._all.num_requests
        most_tokens = share * self._all.num_tokens
        if requests > most_requests:
            return Label(True, "requests", requests / window, most_requests / window)
        if tokens > most_tokens:
            return Label(True, "tokens", tokens / window, most_tokens / window)
        return Label(False, "", requests / window, most_requests / window)


def burst_ratio(arrivals: Iterable[tuple[float, int]], params: DualSignalParams) -> float:
    """Return the share of input tokens labelled, of arrivals (s, prompt tokens) by time.

    What the number of convertible decoders is planned with; 0 of no arrivals.
    """
    detector, num_burst, num_all = DualSignal(params), 0, 0
    for now, num_tokens in arrivals:
        num_all += num_tokens
        if detector.arrived(num_tokens, now=now).is_burst:
            num_burst += num_tokens
    return num_burst / num_all if num_all else 0.0


ANSWER = Answer("dual-signal", DualSignal, "TokenScale, sections II-C and IV-A", DualSignalParams)
