"""The words of a client of vLLM about its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_MOST_TOKENS = 1e9


class Hints(NamedTuple):
    """The words of a client about its request."""

    reasons: bool | None = None
    """True if its output begins with reasoning; None: it does not say."""
    predicted_output_tokens: float = 0.0


def read_hints(told: Mapping[str, Any] | None) -> Hints:
    """Return the hints among a request's extra arguments; what is no hint is ignored."""
    given: Mapping[str, Any] = told or {}
    length: Any = given.get("headway_predicted_output_tokens")
    reasons: Any = given.get("headway_reasons")
    if type(length) not in (int, float) or not 0 <= length < _MOST_TOKENS:
        length = 0.0
    return Hints(bool(reasons) if type(reasons) in (int, bool) else None, length)
