"""The input and the output of an estimation policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headway.request import StreamKey


class Estimable(Protocol):
    """A running request, as an estimation policy sees it; tokens."""

    @property
    def key(self) -> StreamKey:
        """Names the attempt."""

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of the request as its client sent it."""

    @property
    def num_output_tokens(self) -> int:
        """Generated so far."""

    @property
    def prediction(self) -> float | None:
        """The predictor's last remaining length, None before the first."""

    @property
    def num_tokens_since_prediction(self) -> int:
        """Generated since then."""

    @property
    def true_remaining(self) -> int | None:
        """Tokens still to come in truth; None outside the simulator."""


@dataclass(slots=True)
class AsOf:
    """A request as it was when it had so many output tokens, for an estimate."""

    key: StreamKey
    num_prompt_tokens: int
    num_output_tokens: int
    true_remaining: int | None
    prediction: float | None = None
    num_tokens_since_prediction: int = 0


class Estimation(Protocol):
    """A rule for how many tokens a request still has to generate."""

    @property
    def interval(self) -> int:
        """k: decode steps between predictions."""

    def remaining(self, request: Estimable) -> float | None:
        """Tokens still to come, at least 1; None where nothing is known."""
