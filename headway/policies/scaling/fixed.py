"""``fixed``: the configured numbers, whatever the traffic (a baseline of TokenScale's)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.scaling.protocol import Fleet, Rates, Scaling, Targets

MAX_INSTANCES = 10_000


@dataclass(frozen=True, slots=True)
class FixedParams(Bounded):
    """Instances by role."""

    num_prefill: int = between(0, MAX_INSTANCES, default=1)
    num_decode: int = between(0, MAX_INSTANCES, default=1)
    num_convertible: int = between(0, MAX_INSTANCES, default=0)
    num_unified: int = between(0, MAX_INSTANCES, default=0)


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
