"""The model card of a predictor of remaining lengths, Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.lengths.measure import EDGES, LEAST_TOKENS, PREDICTOR, SERVED_EVERY, SMOOTHED
from services.predictor.network import LengthNetwork, parameter_count

COUNTS = ", and the tokens of its prompt and of its output so far"


def card(about: Mapping[str, Any], network: LengthNetwork, measured: Mapping[str, Any]) -> str:
    """Return the card of a network: how it was made, and its errors in tokens."""
    names = list(measured["mae"]["validation"])
    column = SMOOTHED if SMOOTHED in names else PREDICTOR
    paragraphs = [
        f"# Remaining lengths of {about['model']}",
        *_origin(about, network, measured),
        "## Mean absolute error, tokens",
        _by_split(measured, names),
        "Baselines estimate the output's length from the prompt, and count down. "
        f"A prediction weighs {about.get('weight', 1.0):g} against the request's earlier ones, "
        "counted down (1: it alone counts, as in the paper).",
        "## Validation, by tokens generated so far",
        _by_generated(measured, names),
        "Of the requests that still run: rows further down contain longer outputs only. The next "
        "two tables contain the same requests in every row.",
        "## Validation, by shares of the output",
        _by_share(measured, names),
        f"Outputs of at least {LEAST_TOKENS} tokens; each counts once in every row.",
        "## Validation, the same requests at the same tokens",
        f"Of the column “{column}”, by the output's length in the end: a row's requests are in "
        "all of its cells.",
        _followed(measured["by_length"]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _origin(
    about: Mapping[str, Any], network: LengthNetwork, measured: Mapping[str, Any]
) -> tuple[str, str]:
    shape = network.shape
    layers = " → ".join(str(each) for each in (shape.num_inputs, *shape.layers, 1))
    count = parameter_count(shape.layers, shape.num_inputs)
    return (
        "Tokens that a running request still generates, from the last layer's hidden state of its "
        f"newest token{COUNTS if shape.counts else ''}: {layers} ({count:,} parameters), L1 loss.",
        f"Made by `headway predictor train` from {sum(measured['num_requests'].values()):,} "
        f"requests ({about.get('prompts', 'unknown prompts')}), a state every "
        f"{about.get('every', '?')} tokens (measured: as served, every {SERVED_EVERY}), "
        f"temperatures {about.get('temperatures', '?')}; split by request 70/15/15.",
    )


def _by_split(measured: Mapping[str, Any], names: Sequence[str]) -> str:
    rows = [
        [split, f"{measured['num_samples'][split]:,}", *(f"{v:.1f}" for v in row.values())]
        for split, row in measured["mae"].items()
        if row
    ]
    return _table(["split", "samples", *names], rows)


def _by_generated(measured: Mapping[str, Any], names: Sequence[str]) -> str:
    rows = [
        [
            _range(row["from"], row["below"]),
            f"{row['num_samples']:,}",
            f"{row['mean_remaining']:.1f}",
            *(f"{row['mae'][name]:.1f}" for name in names),
        ]
        for row in measured["by_generated"]
    ]
    return _table(["generated", "samples", "mean remaining", *names], rows)


def _by_share(measured: Mapping[str, Any], names: Sequence[str]) -> str:
    rows = [
        [
            _share(row["from"], row["to"]),
            f"{row['num_requests']:,}",
            *(f"{row['mae'][name]:.1f}" for name in names),
        ]
        for row in measured["by_share"]
    ]
    return _table(["of the output", "requests", *names], rows)


def _followed(bands: Sequence[Mapping[str, Any]]) -> str:
    edges = sorted({int(edge) for band in bands for edge in band["mae"]})
    return _table(
        ["output tokens", "requests", *(f"at {edge}" for edge in edges)],
        [
            [
                _range(band["from"], band["below"]),
                str(band["num_requests"]),
                *(_error_text(band["mae"].get(edge, band["mae"].get(str(edge)))) for edge in edges),
            ]
            for band in bands
        ],
    )


def _error_text(error: float | None) -> str:
    return "" if error is None else f"{error:.1f}"


def _share(low: float, high: float) -> str:
    return "first token" if high == 0 else f"{low:.0%} to {high:.0%}"


def _range(low: int, high: int) -> str:
    return f"{low} to {high - 1}" if high < EDGES[-1] else f"{low} and more"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
