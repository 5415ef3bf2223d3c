"""How far predictions are off, in all and by the tokens generated so far; the model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from models.lengths.baselines import Baseline, Floats, remaining_by
from models.lengths.samples import SPLITS, Collected
from services.predictor.network import LengthNetwork, parameter_count

PREDICTOR = "hidden state"
SMOOTHED = "with earlier ones"
WEIGHTS = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05)
"""Of a prediction against a request's earlier ones; 1 is the paper's."""
EDGES = (0, 2, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240, 20_480, 1 << 31)
"""Of the table by tokens generated so far; the first row is the state at the first token."""


def smoothed(remaining: Floats, samples: Collected, weight: float) -> Floats:
    """Each prediction mixed with what the request's earlier ones, counted down, say: (n,)."""
    found = remaining.copy()
    totals: dict[int, float] = {}
    for row in np.lexsort((samples.num_output_tokens, samples.owners)).tolist():
        owner, at = int(samples.owners[row]), float(samples.num_output_tokens[row])
        before = totals.get(owner, at + float(found[row]))
        left = max(0.0, (1 - weight) * (before - at) + weight * float(found[row]))
        found[row], totals[owner] = left, at + left
    return found


def best_weight(network: LengthNetwork, samples: Collected) -> float:
    """The one whose smoothed predictions err least on the validation split."""
    validation = samples.split("validation")
    raw = network.remaining(validation.hidden)

    def error(weight: float) -> float:
        return float(np.abs(smoothed(raw, validation, weight) - validation.remaining).mean())

    return min(WEIGHTS, key=error)


def measure(
    network: LengthNetwork,
    baselines: Mapping[str, Baseline],
    samples: Collected,
    weight: float = 1.0,
) -> dict[str, Any]:
    """Mean absolute errors in tokens: of every split, and of validation by generated tokens."""
    errors = {name: _errors(network, baselines, samples.split(name), weight) for name in SPLITS}
    validation = samples.split("validation")
    return {
        "mae": {
            split: {name: _mean(each) for name, each in found.items()}
            for split, found in errors.items()
        },
        "by_generated": _by_generated(errors["validation"], validation),
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
    found = {PREDICTOR: network.remaining(samples.hidden)}
    if weight < 1:
        found[SMOOTHED] = smoothed(found[PREDICTOR], samples, weight)
    found |= {name: remaining_by(baseline, samples) for name, baseline in baselines.items()}
    return {name: np.abs(each - samples.remaining) for name, each in found.items()}


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


def _by_length(errors: Mapping[str, Floats], samples: Collected) -> list[dict[str, Any]]:
    """The same requests followed from their first token: errors by generated tokens, by length.

    Over all requests an error may rise with the tokens generated only because the long ones remain.
    """
    totals = samples.remaining + samples.num_output_tokens
    best = SMOOTHED if SMOOTHED in errors else PREDICTOR
    bands = []
    for low, high in pairwise((0, *EDGES[4:])):
        inside = (totals >= low) & (totals < high)
        if inside.any():
            chosen = {best: np.where(inside, errors[best], np.float32(np.nan))}
            bands.append(
                {
                    "from": low,
                    "below": high,
                    "num_requests": len(np.unique(samples.owners[inside])),
                    "mae": {
                        row["from"]: row["mae"][best]
                        for row in _by_generated(chosen, samples)
                        if np.isfinite(row["mae"][best])
                    },
                }
            )
    return bands


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return round(float(known.mean()), 2) if len(known) else float("nan")


def card(about: Mapping[str, Any], network: LengthNetwork, measured: Mapping[str, Any]) -> str:
    """The model card, Markdown."""
    shape = network.shape
    layers = " → ".join(str(each) for each in (shape.width, *shape.layers, 1))
    count = parameter_count(shape.layers, shape.width)
    names = list(measured["mae"]["validation"])
    lines = [
        f"# Remaining lengths of {about['model']}",
        "",
        f"Tokens that a running request still generates, from the last layer's hidden state of its "
        f"newest token: {layers} ({count:,} parameters), L1 loss.",
        "",
        f"Made by `headway predictor train` from {sum(measured['num_requests'].values()):,} "
        f"requests ({about.get('prompts', 'unknown prompts')}), a state every "
        f"{about.get('every', '?')} tokens, temperatures {about.get('temperatures', '?')}; "
        "split by request 70/15/15.",
        "",
        "## Mean absolute error, tokens",
        "",
        _table(
            ["split", "samples", *names],
            [
                [split, f"{measured['num_samples'][split]:,}", *(f"{v:.1f}" for v in row.values())]
                for split, row in measured["mae"].items()
                if row
            ],
        ),
        "",
        "Baselines say how long the output will be when the prompt is there, and count down. "
        f"A prediction weighs {about.get('weight', 1.0):g} against the request's earlier ones, "
        "counted down (1: it alone counts, as in the paper).",
        "",
        "## Validation, by tokens generated so far",
        "",
        _table(
            ["generated", "samples", "mean remaining", *names],
            [
                [
                    _range(row["from"], row["below"]),
                    f"{row['num_samples']:,}",
                    f"{row['mean_remaining']:.1f}",
                    *(f"{row['mae'][name]:.1f}" for name in names),
                ]
                for row in measured["by_generated"]
            ],
        ),
        "",
        "## The same requests, followed",
        "",
        f"Errors of the column “{SMOOTHED if SMOOTHED in names else PREDICTOR}”, by the output's "
        "length in the end: further down in the table above only the long ones are left.",
        "",
        _followed(measured["by_length"]),
        "",
    ]
    return "\n".join(lines)


def _followed(bands: Sequence[Mapping[str, Any]]) -> str:
    edges = sorted({int(edge) for band in bands for edge in band["mae"]})
    return _table(
        ["output tokens", "requests", *(f"from {edge}" for edge in edges)],
        [
            [
                _range(band["from"], band["below"]),
                str(band["num_requests"]),
                *(_shown(band["mae"].get(edge, band["mae"].get(str(edge)))) for edge in edges),
            ]
            for band in bands
        ],
    )


def _shown(error: float | None) -> str:
    return "" if error is None else f"{error:.1f}"


def _range(low: int, high: int) -> str:
    return f"{low} to {high - 1}" if high < EDGES[-1] else f"{low} and more"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
