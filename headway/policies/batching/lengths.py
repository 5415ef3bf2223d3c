"""Lengths of requests, true or predicted, tokens."""

from __future__ import annotations

from math import inf

from headway.policies.batching.boost import prompt_work
from headway.policies.batching.protocol import Candidate


def known_remaining(candidate: Candidate) -> float:
    """Return the output tokens to come: the truth, else the prediction, else inf (by arrival)."""
    if candidate.true_remaining is not None:
        return candidate.true_remaining
    return predicted_remaining(candidate)


def predicted_remaining(candidate: Candidate) -> float:
    """Output tokens still to come as predicted, inf where nothing is: they go by arrival."""
    return inf if candidate.predicted_remaining is None else candidate.predicted_remaining


def prompt_remaining(candidate: Candidate) -> int:
    """Prompt tokens still to compute for the first time."""
    return max(0, prompt_work(candidate) - candidate.attained_tokens)
