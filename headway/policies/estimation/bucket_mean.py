"""``bucket-mean``: the mean output length of finished requests with a like prompt.

The fallback for models without a trained predictor (STAR; its spec's coarse mode).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import invalid
from headway.policies.answer import Answer
from headway.policies.estimation.protocol import Estimable

DEFAULT_BOUNDS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Prompt tokens, inclusive; one more bucket is open above."""


@dataclass(frozen=True, slots=True)
class LengthTable:
    """Means and sample counts: one more entry than ``bounds``."""

    bounds: tuple[int, ...]
    means: tuple[float, ...]
    num_samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BucketMeanParams:
    """``bounds`` of the prompt-length buckets in tokens, ascending."""

    bounds: Sequence[int] = DEFAULT_BOUNDS

    def __post_init__(self) -> None:
        if list(self.bounds) != sorted(set(self.bounds)) or any(b < 1 for b in self.bounds):
            raise invalid("bounds", tuple(self.bounds), "ascending and at least 1")


class BucketMean:
    """The mean output length of finished requests with a prompt of like length."""

    def __init__(self, params: BucketMeanParams | None = None) -> None:
        self.bounds = (params or BucketMeanParams()).bounds
        self._totals = [0] * (len(self.bounds) + 1)
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Take in a finished request."""
        bucket = bisect_left(self.bounds, num_prompt_tokens)
        self._totals[bucket] += num_output_tokens
        self._counts[bucket] += 1

    @property
    def interval(self) -> int:
        """Decode steps between predictions: endless, as only finished requests change them."""
        return 1 << 30

    def remaining(self, request: Estimable) -> float | None:
        """Return the bucket's mean less what was generated, at least 1; None if none finished."""
        mean = self.table().means[bisect_left(self.bounds, request.num_prompt_tokens)]
        return max(1.0, mean - request.num_output_tokens) if mean > 0 else None

    def table(self) -> LengthTable:
        """Return the learned means; a bucket without samples has the mean of all, 0 before any."""
        total, count = sum(self._totals), sum(self._counts)
        overall = total / count if count else 0.0
        means = tuple(
            t / c if c else overall for t, c in zip(self._totals, self._counts, strict=True)
        )
        return LengthTable(tuple(self.bounds), means, tuple(self._counts))


ANSWER = Answer(
    "bucket-mean", BucketMean, "STAR, for models without a predictor", BucketMeanParams, ""
)
