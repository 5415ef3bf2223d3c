"""``distserve``: both pools by requests per second (a baseline of TokenScale's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bounds import between, over
from headway.policies.answer import Answer
from headway.policies.scaling.pools import Need, PoolsParams, WindowScaling, need_over
from headway.policies.scaling.protocol import Fleet, Rates


@dataclass(frozen=True, slots=True)
class DistServeParams(PoolsParams):
    """``prefill_per_s`` and ``decode_per_s``: requests/s that one instance carries.

    The paper's 14 and 28 are of the Azure conversation trace; 8 and 20 of the code trace, 12 and
    23 of the mix. ``window``: seconds of rates.
    """

    prefill_per_s: float = over(0, default=14.0)
    decode_per_s: float = over(0, default=28.0)
    window: float = between(0.1, 3600, default=2.0)


class DistServe(WindowScaling):
    """Both pools by requests per second, whatever their size."""

    name = "distserve"
    missing = "no fresh rates"

    def __init__(self, params: DistServeParams | None = None) -> None:
        self._params = params or DistServeParams()
        super().__init__(self._params, self._params.window)

    def figures(self, rates: Rates | None, fleet: Fleet | None) -> tuple[float, ...] | None:
        """Return the requests per second."""
        return None if rates is None else (rates.requests_per_s,)

    def needs(self, means: Sequence[tuple[float, ...]], fleet: Fleet) -> tuple[Need, Need]:
        """Divide the rate by the threshold, pool by pool."""
        ((rate,),) = means
        params, share = self._params, self._params.target_utilisation
        return (
            need_over(rate, params.prefill_per_s * share, "requests/s", 2),
            need_over(rate, params.decode_per_s * share, "requests/s", 2),
        )


ANSWER = Answer(
    "distserve", DistServe, "DistServe, OSDI '24; TokenScale's baseline", DistServeParams
)
