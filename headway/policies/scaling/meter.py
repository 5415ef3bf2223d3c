"""Counting what arrives: the same rates for the live gateway and the simulated one."""

from __future__ import annotations

from math import inf

from headway.cost.buckets import NUM_BUCKETS, Buckets
from headway.policies.scaling.protocol import Rates
from headway.service_class import NO_STANDING, Standing

_LEAST_WINDOW = 1e-3


class RateMeter:
    """A count of arrivals and output since the last reading, O(1) each."""

    def __init__(self, buckets: Buckets | None = None, *, now: float) -> None:
        self._buckets = buckets or Buckets()
        self._began_at = now
        self._num_requests = self._num_input = self._num_output = 0
        self._by_bucket = [0.0] * NUM_BUCKETS
        self._num_burst = 0
        self._between_tokens = self._first_token = inf

    def arrived(
        self,
        num_input_tokens: int,
        predicted_output_tokens: float,
        standing: Standing = NO_STANDING,
    ) -> int:
        """Count a request and return its bucket; a prediction of 0 means that nothing is known.

        One that yields by its class counts for nothing: no instance is started for what can wait.
        """
        bucket = self._buckets.of(num_input_tokens, predicted_output_tokens)
        if standing.yields:
            return bucket
        if standing.service is not None:
            self._between_tokens = min(self._between_tokens, standing.service.tpot or inf)
            self._first_token = min(self._first_token, standing.service.ttft or inf)
        num_output = predicted_output_tokens or self._buckets.lengths(bucket)[1]
        self._num_requests += 1
        self._num_input += num_input_tokens
        self._by_bucket[bucket] += num_input_tokens + num_output
        return bucket

    def produced(self, num_tokens: int) -> None:
        """Output tokens came in."""
        self._num_output += num_tokens

    def read(self, *, now: float, num_burst: int | None = None) -> tuple[Rates, float]:
        """Return the rates since the last reading, and its seconds, and count anew.

        ``num_burst``: input tokens labelled as burst so far; None if nobody labels them.
        """
        window = max(now - self._began_at, _LEAST_WINDOW)
        burst = None if num_burst is None else (num_burst - self._num_burst) / window
        self._num_burst = num_burst or 0
        rates = Rates(
            self._num_requests / window,
            self._num_input / window,
            self._num_output / window,
            tuple(tokens / window for tokens in self._by_bucket),
            burst,
            None if self._between_tokens == inf else self._between_tokens,
            None if self._first_token == inf else self._first_token,
        )
        self._between_tokens = self._first_token = inf
        self._began_at = now
        self._num_requests = self._num_input = self._num_output = 0
        self._by_bucket = [0.0] * NUM_BUCKETS
        return rates, window
