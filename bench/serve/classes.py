"""Requests of a live run as their classes felt them (``headway.class_metrics``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bench.serve.replay import ReplayedRequest
from headway.class_metrics import Reading, ServedRequest, figures


class Alone(NamedTuple):
    """The time of a request that runs alone: the least TTFT and TPOT that were seen, seconds."""

    ttft: float
    tpot: float

    @classmethod
    def of(cls, outcomes: Iterable[ReplayedRequest]) -> Alone:
        """Return the least of these; runs that are compared need one for all of them."""
        times = [each.times for each in outcomes if each.times is not None]
        tpots = [tpot for each in times if (tpot := each.tpot)]
        return cls(min((each.ttft for each in times), default=0.0), min(tpots, default=0.0))

    def seconds(self, num_output_tokens: int) -> float:
        """Return the TTLT of so many tokens."""
        return self.ttft + max(0, num_output_tokens - 1) * self.tpot


def by_class(outcomes: Sequence[ReplayedRequest], alone: Alone | None = None) -> dict[str, float]:
    """Return the figures of every class; without ``alone``, that of these requests."""
    alone = alone or Alone.of(outcomes)
    return figures(served for each in outcomes if (served := as_served(each, alone)) is not None)


def as_served(outcome: ReplayedRequest, alone: Alone) -> ServedRequest | None:
    """Return what a user felt, None of a request that failed.

    Events that came before the answer count as reasoning tokens.
    """
    times = outcome.times
    if times is None:
        return None
    instants = times.first_token_at + np.concatenate(([0.0], np.cumsum(outcome.gaps)))
    num_reasoning = 0
    if outcome.planned.reasons:
        begins_at = np.inf if times.first_answer_at is None else times.first_answer_at - 1e-9
        num_reasoning = int(np.searchsorted(instants, begins_at))
    reading = Reading.of(instants[num_reasoning:]) if outcome.planned.is_read else None
    solo = alone.seconds(times.num_output_tokens)
    return ServedRequest(num_reasoning, times.ttft, times.ttfat, times.ttlt, reading, solo)
