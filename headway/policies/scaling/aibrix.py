"""``aibrix``: prefillers by concurrency, decoders by KV memory (a baseline of TokenScale's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bounds import between, over
from headway.policies.answer import Answer
from headway.policies.scaling.pools import Need, PoolsParams, WindowScaling, awake, need_over
from headway.policies.scaling.protocol import Fleet, Rates


@dataclass(frozen=True, slots=True)
class AibrixParams(PoolsParams):
    """``prefill_concurrency``: requests that one prefiller may have (the trace's peak prefill
    throughput over its mean prompt). ``decode_memory``: share of KV memory in use that is aimed
    at. ``window``: seconds of figures.
    """

    prefill_concurrency: float = over(0, default=7.0)
    decode_memory: float = between(0.05, 1, default=0.7)
    window: float = between(0.1, 3600, default=10.0)


class Aibrix(WindowScaling):
    """Prefillers by the requests that are there, decoders by the KV memory in use."""

    name = "aibrix"

    def __init__(self, params: AibrixParams | None = None) -> None:
        self._params = params or AibrixParams()
        super().__init__(self._params, self._params.window)

    def figures(self, rates: Rates | None, fleet: Fleet | None) -> tuple[float, ...] | None:
        """Return the concurrency of prefill, and instances × memory of decode."""
        if fleet is None:
            return None
        return fleet.prefill.num_requests, fleet.decode.num_ready * fleet.decode.memory

    def needs(self, means: Sequence[tuple[float, ...]], fleet: Fleet) -> tuple[Need, Need]:
        """Divide each by its threshold."""
        ((requests, full),) = means
        params, share = self._params, self._params.target_utilisation
        decode = need_over(full, params.decode_memory * share, "instances' KV memory", 2)
        return (
            need_over(requests, params.prefill_concurrency * share, "requests", 1),
            awake(decode, fleet.decode),
        )


ANSWER = Answer("aibrix", Aibrix, "AIBrix; TokenScale's baseline", AibrixParams)
