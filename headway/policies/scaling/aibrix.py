"""``aibrix``: prefillers by concurrency, decoders by KV memory (a baseline of TokenScale's)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import require_between, require_over
from headway.policies.answer import Answer
from headway.policies.scaling.pools import Need, Pools, PoolsParams, awake
from headway.policies.scaling.protocol import Fleet, Rates, Scaling, Targets
from headway.policies.scaling.window import WindowMean


@dataclass(frozen=True, slots=True)
class AibrixParams(PoolsParams):
    """``prefill_concurrency``: requests that one prefiller may have (over 0; the trace's peak
    prefill throughput over its mean prompt). ``decode_memory``: share of KV memory in use that
    is aimed at (0.05 to 1). ``window``: seconds of figures (0.1 to 3600).
    """

    prefill_concurrency: float = 7.0
    decode_memory: float = 0.7
    window: float = 10.0

    def __post_init__(self) -> None:
        PoolsParams.__post_init__(self)
        require_over("prefill_concurrency", self.prefill_concurrency, 0)
        require_between("decode_memory", self.decode_memory, 0.05, 1)
        require_between("window", self.window, 0.1, 3600)


class Aibrix(Scaling):
    """Prefillers by the requests that are there, decoders by the KV memory in use."""

    name = "aibrix"

    def __init__(self, params: AibrixParams | None = None) -> None:
        self._params = params or AibrixParams()
        self._pools = Pools(self._params)
        self._window = WindowMean(self._params.window)

    def begin(self, fleet: Fleet) -> None:
        """Before any decision: pools have the size that there is."""
        self._pools.hold(fleet, "begun")

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Concurrency over its threshold; instances × memory over its threshold."""
        if fleet is None:
            self._window.clear()
            return self._pools.hold(fleet, "no fresh load of the fleet")
        share = self._params.target_utilisation
        requests, full = self._window.add(
            fleet.prefill.num_requests, fleet.decode.num_ready * fleet.decode.memory, now=now
        )
        concurrency = self._params.prefill_concurrency * share
        memory = self._params.decode_memory * share
        return self._pools.decide(
            Need(requests / concurrency, f"{requests:.1f} requests over {concurrency:.1f}"),
            awake(
                Need(full / memory, f"{full:.2f} instances' KV memory over {memory:.2f}"),
                fleet.decode,
            ),
            fleet,
            now=now,
        )


ANSWER = Answer("aibrix", Aibrix, "AIBrix; TokenScale's baseline", AibrixParams)
