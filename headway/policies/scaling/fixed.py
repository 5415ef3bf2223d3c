"""``fixed``: the configured numbers, whatever the traffic (a baseline of TokenScale's)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headway.errors import require_between
from headway.policies.answer import Answer
from headway.policies.scaling.protocol import Fleet, Rates, Scaling, Targets

MAX_INSTANCES = 10_000


@dataclass(frozen=True, slots=True)
class FixedParams:
    """Instances by role, each 0 to ``MAX_INSTANCES``."""

    num_prefill: int = 1
    num_decode: int = 1
    num_convertible: int = 0
    num_unified: int = 0

    def __post_init__(self) -> None:
        for field in ("num_prefill", "num_decode", "num_convertible", "num_unified"):
            require_between(field, getattr(self, field), 0, MAX_INSTANCES)


class Fixed(Scaling):
    """The configured numbers, whatever the traffic."""

    name = "fixed"
    scales: ClassVar[bool] = False

    def __init__(self, params: FixedParams | None = None) -> None:
        self._params = params or FixedParams()

    def begin(self, fleet: Fleet) -> None:
        """Do nothing: the configured numbers hold, whatever there is."""

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Return the configured numbers."""
        params = self._params
        seen = (
            "no fresh rates: holding the configured size"
            if rates is None
            else f"configured size; {rates.requests_per_s:.2f} requests/s, "
            f"{rates.input_tokens_per_s:.0f} input and {rates.output_tokens_per_s:.0f} "
            "output tokens/s seen"
        )
        return Targets(
            params.num_prefill, params.num_decode, params.num_convertible, params.num_unified, seen
        )


ANSWER = Answer("fixed", Fixed, "TokenScale's baseline", FixedParams)
