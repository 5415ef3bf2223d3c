"""The measured errors of a trained predictor, from the ``metrics.json`` beside its card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError, invalid, require_over

_COLUMNS = ("with earlier ones", "hidden state")
"""Errors as served, where they were measured, or of single answers."""


def read_card(path: Path) -> Mapping[str, object]:
    """Return ``generated`` and ``errors`` of ``measured-oracle``; HeadwayError says what is wrong.

    ``path``: a predictor's folder, or its ``metrics.json``.
    """
    file = path / "metrics.json" if path.is_dir() else path
    try:
        rows = json.loads(file.read_text("utf-8"))["by_generated"]
        errors = [_share(row) for row in rows]
        return {"generated": [int(row["from"]) for row in rows], "errors": errors}
    except HeadwayError as error:
        message = f"predictor card {file}: {error.message}"
        raise HeadwayError(error.code, message, param="predictor.card") from None
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        message = f"predictor card {file} cannot be read: {error!r}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="predictor.card") from error


def _share(row: Mapping[str, Any]) -> float:
    """Return the mean absolute error over the mean remaining length."""
    column = next((name for name in _COLUMNS if name in row["mae"]), "")
    if not column:
        limit = (
            f"a table with {' or '.join(map(repr, _COLUMNS))}: `headway predictor train` writes it"
        )
        raise invalid("mae", row["mae"], limit)
    require_over("mean_remaining", row["mean_remaining"], 0)
    return float(row["mae"][column]) / float(row["mean_remaining"])
