"""``blitzscale``: both pools by request counts, no load time (a baseline of TokenScale's)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import require_between, require_over
from headway.policies.answer import Answer
from headway.policies.scaling.pools import Need, Pools, PoolsParams
from headway.policies.scaling.protocol import Fleet, Rates, Scaling, Targets
from headway.policies.scaling.window import WindowMean


@dataclass(frozen=True, slots=True)
class BlitzScaleParams(PoolsParams):
    """``prefill_requests`` and ``decode_requests``: what one instance may have (over 0).

    The paper's 7 and 45 are of the Azure conversation trace; 7 and 38 of the code trace, 11 and
    41 of the mix. ``window``: seconds of figures (0.1 to 3600).
    """

    prefill_requests: float = 7.0
    decode_requests: float = 45.0
    window: float = 2.0

    def __post_init__(self) -> None:
        PoolsParams.__post_init__(self)
        require_over("prefill_requests", self.prefill_requests, 0)
        require_over("decode_requests", self.decode_requests, 0)
        require_between("window", self.window, 0.1, 3600)


class BlitzScale(Scaling):
    """Both pools by the requests that are there; new instances serve while they load."""

    name = "blitzscale"
    loads_live = True

    def __init__(self, params: BlitzScaleParams | None = None) -> None:
        self._params = params or BlitzScaleParams()
        self._pools = Pools(self._params)
        self._window = WindowMean(self._params.window)

    def begin(self, fleet: Fleet) -> None:
        """Before any decision: pools have the size that there is."""
        self._pools.hold(fleet, "begun")

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Requests over the threshold, pool by pool."""
        if fleet is None:
            self._window.clear()
            return self._pools.hold(fleet, "no fresh load of the fleet")
        share = self._params.target_utilisation
        prefill, decode = self._window.add(
            fleet.prefill.num_requests, fleet.decode.num_requests, now=now
        )
        most_prefill = self._params.prefill_requests * share
        most_decode = self._params.decode_requests * share
        return self._pools.decide(
            Need(prefill / most_prefill, f"{prefill:.1f} requests over {most_prefill:.1f}"),
            Need(decode / most_decode, f"{decode:.1f} requests over {most_decode:.1f}"),
            fleet,
            now=now,
        )


ANSWER = Answer(
    "blitzscale", BlitzScale, "BlitzScale, OSDI '25; TokenScale's baseline", BlitzScaleParams
)
