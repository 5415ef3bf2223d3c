"""``utilisation``: both pools by how full they are, Knative-like (a baseline of TokenScale's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bounds import between
from headway.errors import invalid
from headway.policies.answer import Answer
from headway.policies.scaling.pools import Need, PoolsParams, WindowScaling, awake
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates


@dataclass(frozen=True, slots=True)
class UtilisationParams(PoolsParams):
    """``target_utilisation``: share of busy time (prefill) and of KV memory (decode) aimed at.

    ``stable_window`` and ``panic_window``: seconds of figures. If the panic window asks for
    ``panic_factor`` times the ready instances, that counts at once. An instance is at most full,
    so a factor over 1 / target never applies. (Knative's factor 2 is for concurrency, which has no
    such limit.)
    """

    target_utilisation: float = between(0.05, 1, default=0.7)
    stable_window: float = between(0.1, 3600, default=60.0)
    panic_window: float = 6.0
    panic_factor: float = between(1, 100, default=1.3)

    def __post_init__(self) -> None:
        PoolsParams.__post_init__(self)
        if not 0.1 <= self.panic_window <= self.stable_window:
            limit = f"from 0.1 to the stable window, {self.stable_window:g} s"
            raise invalid("panic_window", self.panic_window, limit)


class Utilisation(WindowScaling):
    """Instances × how full they are over the target, on a slow mean, and a fast one in panic."""

    name = "utilisation"

    def __init__(self, params: UtilisationParams | None = None) -> None:
        self._params = params or UtilisationParams()
        super().__init__(self._params, self._params.stable_window, self._params.panic_window)

    def figures(self, rates: Rates | None, fleet: Fleet | None) -> tuple[float, ...] | None:
        """Return the busy instances of prefill, and the full ones of decode."""
        if fleet is None:
            return None
        prefill, decode = fleet.prefill, fleet.decode
        return prefill.num_ready * prefill.busy, decode.num_ready * decode.memory

    def needs(self, means: Sequence[tuple[float, ...]], fleet: Fleet) -> tuple[Need, Need]:
        """Size prefillers by busy time, decoders by KV memory."""
        slow, fast = means
        return (
            self._need(slow[0], fast[0], fleet.prefill, "busy"),
            self._need(slow[1], fast[1], fleet.decode, "full"),
        )

    def _need(self, slow: float, fast: float, pool: PoolLoad, word: str) -> Need:
        target = self._params.target_utilisation
        panics = fast / target >= self._params.panic_factor * max(pool.num_ready, 1)
        used = max(slow, fast) if panics else slow
        reason = f"{used:.2f} instances {word} over {target:g}" + (" (panic)" if panics else "")
        return awake(Need(used / target, reason), pool)


ANSWER = Answer(
    "utilisation", Utilisation, "Knative's KPA; TokenScale's baseline", UtilisationParams
)
