"""``utilisation``: both pools by how full they are, Knative-like (a baseline of TokenScale's)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import invalid, require_between
from headway.policies.answer import Answer
from headway.policies.scaling.pools import Need, Pools, PoolsParams, awake
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Scaling, Targets
from headway.policies.scaling.window import WindowMean


@dataclass(frozen=True, slots=True)
class UtilisationParams(PoolsParams):
    """``target_utilisation``: share of busy time (prefill) and of KV memory (decode) aimed at.

    ``stable_window`` and ``panic_window``: seconds of figures (0.1 to 3600). A panic need of
    ``panic_factor`` (1 to 100) times what is ready counts at once; nothing is fuller than full,
    so that a factor over 1 / target never does (Knative's 2 is of concurrency, which has no end).
    """

    target_utilisation: float = 0.7
    stable_window: float = 60.0
    panic_window: float = 6.0
    panic_factor: float = 1.3

    def __post_init__(self) -> None:
        PoolsParams.__post_init__(self)
        require_between("stable_window", self.stable_window, 0.1, 3600)
        require_between("panic_factor", self.panic_factor, 1, 100)
        if not 0.1 <= self.panic_window <= self.stable_window:
            limit = f"from 0.1 to the stable window, {self.stable_window:g} s"
            raise invalid("panic_window", self.panic_window, limit)


class Utilisation(Scaling):
    """Instances × how full they are over the target, on a slow mean, and a fast one in panic."""

    name = "utilisation"

    def __init__(self, params: UtilisationParams | None = None) -> None:
        self._params = params or UtilisationParams()
        self._pools = Pools(self._params)
        self._stable = WindowMean(self._params.stable_window)
        self._panic = WindowMean(self._params.panic_window)

    def begin(self, fleet: Fleet) -> None:
        """Before any decision: pools have the size that there is."""
        self._pools.hold(fleet, "begun")

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Prefillers by busy time, decoders by KV memory."""
        if fleet is None:
            self._stable.clear()
            self._panic.clear()
            return self._pools.hold(fleet, "no fresh load of the fleet")
        prefill = fleet.prefill.num_ready * fleet.prefill.busy
        decode = fleet.decode.num_ready * fleet.decode.memory
        slow = self._stable.add(prefill, decode, now=now)
        fast = self._panic.add(prefill, decode, now=now)
        return self._pools.decide(
            self._need(slow[0], fast[0], fleet.prefill, "busy"),
            self._need(slow[1], fast[1], fleet.decode, "full"),
            fleet,
            now=now,
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
