"""``blitzscale``: both pools by request counts, no load time (a baseline of TokenScale's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bounds import between, over
from headway.policies.answer import Answer
from headway.policies.scaling.pools import Need, PoolsParams, WindowScaling, need_over
from headway.policies.scaling.protocol import Fleet, Rates


@dataclass(frozen=True, slots=True)
class BlitzScaleParams(PoolsParams):
    """``prefill_requests`` and ``decode_requests``: what one instance may have.

    The paper's 7 and 45 are of the Azure conversation trace; 7 and 38 of the code trace, 11 and
    41 of the mix. ``window``: seconds of figures.
    """

    prefill_requests: float = over(0, default=7.0)
    decode_requests: float = over(0, default=45.0)
    window: float = between(0.1, 3600, default=2.0)


class BlitzScale(WindowScaling):
    """Both pools by the requests that are there; new instances serve while they load."""

    name = "blitzscale"
    loads_live = True

    def __init__(self, params: BlitzScaleParams | None = None) -> None:
        self._params = params or BlitzScaleParams()
        super().__init__(self._params, self._params.window)

    def figures(self, rates: Rates | None, fleet: Fleet | None) -> tuple[float, ...] | None:
        """Return the requests of each pool."""
        return None if fleet is None else (fleet.prefill.num_requests, fleet.decode.num_requests)

    def needs(self, means: Sequence[tuple[float, ...]], fleet: Fleet) -> tuple[Need, Need]:
        """Divide the requests by the threshold, pool by pool."""
        ((prefill, decode),) = means
        params, share = self._params, self._params.target_utilisation
        return (
            need_over(prefill, params.prefill_requests * share, "requests", 1),
            need_over(decode, params.decode_requests * share, "requests", 1),
        )


ANSWER = Answer(
    "blitzscale",
    BlitzScale,
    "BlitzScale, OSDI '25; TokenScale's baseline",
    BlitzScaleParams,
    left_out="new instances serve while they load: live they start as under any policy",
)
