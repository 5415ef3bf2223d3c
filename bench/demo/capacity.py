"""A cluster's capacity: tokens/s at saturation, prompt tokens/s, and a request's solo time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.serve.classes import Alone
from bench.serve.replay import ReplayedRequest
from headway.errors import Code, HeadwayError
from headway.metrics import RequestTimes

_LEAST_ENDED = 8  # requests that must have ended in a closed loop


@dataclass(frozen=True, slots=True)
class Capacity:
    """Rates at saturation, a second; mean output tokens of a request; the times of one alone."""

    tokens_per_s: float
    prompt_tokens_per_s: float
    num_tokens: float
    alone: Alone

    @property
    def requests_per_s(self) -> float:
        """Requests of the mix at saturation, a second."""
        return self.tokens_per_s / self.num_tokens

    @property
    def solo(self) -> float:
        """Seconds of a typical request, alone."""
        return self.alone.seconds(round(self.num_tokens))

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"{self.tokens_per_s:.0f} tokens/s at saturation ({self.requests_per_s:.1f} requests/s "
            f"of {self.num_tokens:.0f} tokens), {self.prompt_tokens_per_s:.0f} prompt tokens/s; "
            f"a typical request alone takes {self.solo:.2f} s"
        )


def capacity_of(
    alone: Sequence[ReplayedRequest],
    prompts: Sequence[ReplayedRequest],
    mixed: Sequence[ReplayedRequest],
) -> Capacity:
    """Return what three closed loops found; HeadwayError where a request of one failed.

    ``alone``: requests one after the other. ``prompts``: requests with one output token each.
    ``mixed``: the demo's own mix, with more requests in flight than a cluster has places.
    """
    _require_whole([*alone, *prompts, *mixed])
    tokens = tokens_per_s(mixed)
    return Capacity(tokens, _prompt_tokens_per_s(prompts), _mean_tokens(mixed), _alone(alone))


def tokens_per_s(loop: Sequence[ReplayedRequest]) -> float:
    """Return the output tokens a second while the loop was full.

    It is full from its first end, when others have long been running, until its last request is
    sent. FAILED_PRECONDITION where too few requests ended within that time.
    """
    begins_at = min(each.ended_at for each in loop)
    ends_at = max(each.sent_at for each in loop)
    num_ended = sum(each.ended_at <= ends_at for each in loop)
    if num_ended < _LEAST_ENDED or ends_at <= begins_at:
        message = (
            f"this cluster is too slow to be measured: {num_ended} requests ended while it was "
            f"saturated, and {_LEAST_ENDED} must; try a smaller model or a quieter machine"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    tokens = sum(_tokens_within(each, begins_at, ends_at) for each in loop)
    return tokens / (ends_at - begins_at)


def _tokens_within(outcome: ReplayedRequest, begins_at: float, ends_at: float) -> float:
    """Count the tokens that came between two instants; tokens without text share their event."""
    times = _times(outcome)
    instants = times.first_token_at + np.concatenate(([0.0], np.cumsum(outcome.gaps)))
    share = np.count_nonzero((instants > begins_at) & (instants <= ends_at)) / len(instants)
    return float(share * times.num_output_tokens)


def _prompt_tokens_per_s(loop: Sequence[ReplayedRequest]) -> float:
    began_at = min(each.sent_at for each in loop)
    took = max(each.ended_at for each in loop) - began_at
    return sum(each.prompt_tokens or 0 for each in loop) / took


def _mean_tokens(loop: Sequence[ReplayedRequest]) -> float:
    return statistics.fmean(_times(each).num_output_tokens for each in loop)


def _alone(loop: Sequence[ReplayedRequest]) -> Alone:
    """Return the medians; the first request, which finds everything cold, is left out."""
    times = [_times(each) for each in loop[1:]]
    tpots = [each.tpot or 0.0 for each in times]
    return Alone(statistics.median(each.ttft for each in times), statistics.median(tpots))


def _require_whole(requests: Sequence[ReplayedRequest]) -> None:
    for each in requests:
        if each.error_kind:
            message = f"a request of the warm-up failed ({each.error_kind}): {each.error}"
            raise HeadwayError(Code.UNAVAILABLE, message)


def _times(outcome: ReplayedRequest) -> RequestTimes:
    assert outcome.times is not None  # all of them are whole
    return outcome.times
