"""What a scaling policy reads and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Rates:
    """What gateways see together, per second; None where no fresh figure is known."""

    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Targets:
    """Instances wanted by role, and why."""

    num_prefill: int
    num_decode: int
    num_convertible: int
    num_unified: int
    reason: str


class Scaling(Protocol):
    """Decides how many instances of each role there should be."""

    @property
    def name(self) -> str:
        """The registry's name for it."""

    def targets(self, rates: Rates | None) -> Targets:
        """The targets now. No rates is no figure, not zero traffic: hold, and say so."""
