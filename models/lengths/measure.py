"""Errors of predictions, in all and by the tokens generated so far."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from models.lengths.baselines import Baseline, Floats, remaining_by
from models.lengths.samples import SPLITS, Collected
from services.predictor.network import LengthNetwork

PREDICTOR = "hidden state"
SMOOTHED = "with earlier ones"
WEIGHTS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Weights of a prediction against a request's earlier ones; 1 is the paper's."""
EDGES = (0, 2, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240, 20_480, 1 << 31)
"""Rows of the table by tokens generated so far; the first is the state at the first token."""
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
COHORT_TOKENS = (21, 41, 61, 101, 141, 201, 281, 401, 601, 1201)
LEAST_TOKENS = 120
"""Least tokens of an output in the table by shares: each fifth holds a sample (every 20 tokens)."""
SERVED_EVERY = 20


def as_served(samples: Collected, every: int) -> Collected:
    """Return the samples that a worker asks about, one every 20 tokens."""
    if SERVED_EVERY % every:
        return samples
    return samples.rows((samples.num_output_tokens - 1) % SERVED_EVERY == 0)


def smoothed(remaining: Floats, samples: Collected, weight: float) -> Floats:
    """Mix each prediction with the request's earlier ones, counted down: (n,)."""
    smooth = remaining.copy()
    totals: dict[int, float] = {}
    for row in np.lexsort((samples.num_output_tokens, samples.owners)).tolist():
        owner, at = int(samples.owners[row]), float(samples.num_output_tokens[row])
        before = totals.get(owner, at + float(smooth[row]))
        left = max(0.0, (1 - weight) * (before - at) + weight * float(smooth[row]))
        smooth[row], totals[owner] = left, at + left
    return smooth


def best_weight(network: LengthNetwork, samples: Collected) -> float:
    """Return the weight whose smoothed predictions err least on the validation split."""
    validation = samples.split("validation")
    raw = network.remaining(validation.hidden, validation.counts)

    def error(weight: float) -> float:
        return float(np.abs(smoothed(raw, validation, weight) - validation.remaining).mean())

    return min(WEIGHTS, key=error)


def measure(
    network: LengthNetwork,
    baselines: Mapping[str, Baseline],
    samples: Collected,
    weight: float = 1.0,
) -> dict[str, Any]:
    """Return mean absolute errors in tokens: by split, and for validation as outputs grow.

    By generated tokens all requests that are left count; by shares of the output and by tokens
    the same requests count everywhere.
    """
    errors = {name: _errors(network, baselines, samples.split(name), weight) for name in SPLITS}
    validation = samples.split("validation")
    return {
        "mae": {
            split: {name: _mean(each) for name, each in of_split.items()}
            for split, of_split in errors.items()
        },
        "by_generated": _by_generated(errors["validation"], validation),
        "by_share": _by_share(errors["validation"], validation),
        "by_length": _by_length(errors["validation"], validation),
        "num_samples": {name: len(samples.split(name).remaining) for name in SPLITS},
        "num_requests": {
            name: sum(request.split == name for request in samples.requests) for name in SPLITS
        },
    }


def _errors(
    network: LengthNetwork, baselines: Mapping[str, Baseline], samples: Collected, weight: float
) -> dict[str, Floats]:
    if not len(samples.remaining):
        return {}
    predictions = {PREDICTOR: network.remaining(samples.hidden, samples.counts)}
    if weight < 1:
        predictions[SMOOTHED] = smoothed(predictions[PREDICTOR], samples, weight)
    predictions |= {name: remaining_by(baseline, samples) for name, baseline in baselines.items()}
    return {name: np.abs(each - samples.remaining) for name, each in predictions.items()}


def _by_generated(errors: Mapping[str, Floats], samples: Collected) -> list[dict[str, Any]]:
    rows = []
    for low, high in pairwise(EDGES):
        inside = (samples.num_output_tokens >= low) & (samples.num_output_tokens < high)
        if inside.any():
            rows.append(
                {
                    "from": low,
                    "below": high,
                    "num_samples": int(inside.sum()),
                    "mean_remaining": _mean(samples.remaining[inside]),
                    "mae": {name: _mean(each[inside]) for name, each in errors.items()},
                }
            )
    return rows


def _by_share(errors: Mapping[str, Floats], samples: Collected) -> list[dict[str, Any]]:
    """Return errors with every request in every row: at its first token, then by share.

    A request counts once in a row, by its mean error there.
    """
    totals = samples.remaining + samples.num_output_tokens
    long = totals >= LEAST_TOKENS
    shares = samples.num_output_tokens / totals
    rows = []
    for low, high in ((-1.0, SHARES[0]), *pairwise(SHARES)):
        inside = (shares > low) & (shares <= high) & (samples.num_output_tokens > 1)
        if high == 0:
            inside = samples.num_output_tokens <= 1
        inside &= long
        if inside.any():
            rows.append(
                {
                    "from": max(0.0, low),
                    "to": high,
                    "num_requests": len(np.unique(samples.owners[inside])),
                    "mae": {
                        name: _mean_by_owner(each[inside], samples.owners[inside])
                        for name, each in errors.items()
                    },
                }
            )
    return rows


def _mean_by_owner(errors: Floats, owners: np.ndarray) -> float:
    _, places = np.unique(owners, return_inverse=True)
    means = np.bincount(places, weights=errors) / np.bincount(places)
    return round(float(means.mean()), 2)


def _by_length(errors: Mapping[str, Floats], samples: Collected) -> list[dict[str, Any]]:
    """Return errors of the same requests at the same tokens: outputs of one length."""
    totals = samples.remaining + samples.num_output_tokens
    best = SMOOTHED if SMOOTHED in errors else PREDICTOR
    bands = []
    for low, high in pairwise((80, 160, 240, 320, 480, *EDGES[6:])):
        inside = (totals >= low) & (totals < high)
        if inside.any():
            at = samples.num_output_tokens
            mae = {
                first: _mean(errors[best][inside & (at >= first) & (at < first + SERVED_EVERY)])
                for first in (1, *COHORT_TOKENS)
                if first + SERVED_EVERY <= low
            }
            num_requests = len(np.unique(samples.owners[inside]))
            bands.append({"from": low, "below": high, "num_requests": num_requests, "mae": mae})
    return bands


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return round(float(known.mean()), 2) if len(known) else float("nan")
