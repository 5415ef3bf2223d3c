"""``fixed``: the configured numbers, whatever the traffic (a baseline of TokenScale's)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import invalid
from headway.policies.scaling.protocol import Rates, Targets

MAX_INSTANCES = 10_000


@dataclass(frozen=True, slots=True)
class Fixed:
    """Instances by role, each 0 to ``MAX_INSTANCES``."""

    num_prefill: int = 1
    num_decode: int = 1
    num_convertible: int = 0
    num_unified: int = 0
    name: str = "fixed"

    def __post_init__(self) -> None:
        for field in ("num_prefill", "num_decode", "num_convertible", "num_unified"):
            value = getattr(self, field)
            if not 0 <= value <= MAX_INSTANCES:
                raise invalid(field, value, f"from 0 to {MAX_INSTANCES}")

    def targets(self, rates: Rates | None) -> Targets:
        """The configured numbers."""
        seen = (
            "no fresh rates: holding the configured size"
            if rates is None
            else f"configured size; {rates.requests_per_s:.2f} requests/s, "
            f"{rates.input_tokens_per_s:.0f} input and {rates.output_tokens_per_s:.0f} "
            "output tokens/s seen"
        )
        return Targets(
            self.num_prefill, self.num_decode, self.num_convertible, self.num_unified, seen
        )
