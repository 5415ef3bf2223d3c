"""Two pools, their bounds and when they hold: shared by all scaling policies but ``fixed``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.errors import invalid
from headway.policies.scaling.fixed import MAX_INSTANCES
from headway.policies.scaling.pool import Bounds, Pool
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Scaling, Targets
from headway.policies.scaling.window import WindowMean


@dataclass(frozen=True, slots=True)
class PoolsParams(Bounded):
    """Instances, least and most of each pool.

    ``target_utilisation``: share of an instance's velocity or threshold that is planned with.
    ``hold_down``: seconds of quiet before a pool shrinks. ``margin``: what the smaller pool must
    have to spare, a share of it.
    """

    min_prefill: int = between(0, MAX_INSTANCES, default=1)
    max_prefill: int = between(0, MAX_INSTANCES, default=10)
    min_decode: int = between(0, MAX_INSTANCES, default=1)
    max_decode: int = between(0, MAX_INSTANCES, default=10)
    target_utilisation: float = between(0.05, 1, default=1.0)
    hold_down: float = between(0, 86_400, default=10.0)
    margin: float = between(0, 0.9, default=0.05)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        for role in ("prefill", "decode"):
            least, most = getattr(self, f"min_{role}"), getattr(self, f"max_{role}")
            if least > most:
                raise invalid(f"min_{role}", least, f"at most max_{role}, {most}")

    def bounds(self, role: str, *, hold_down: float = 0.0, num_elsewhere: int = 0) -> Bounds:
        """Return the bounds of one pool; ``num_elsewhere`` of its instances are not its own.

        ``hold_down``: its least, seconds.
        """
        most = max(0, getattr(self, f"max_{role}") - num_elsewhere)
        least = min(getattr(self, f"min_{role}"), most)
        return Bounds(least, most, max(self.hold_down, hold_down), self.margin)


@dataclass(frozen=True, slots=True)
class Need:
    """Instances that a pool needs, with fractions, and the sum that they come from.

    ``held``: instances that its present requests fill.
    """

    instances: float
    reason: str
    held: float = 0.0


def need_over(figure: float, threshold: float, unit: str, digits: int) -> Need:
    """Return the instances of which each has ``threshold`` of a figure."""
    return Need(figure / threshold, f"{figure:.{digits}f} {unit} over {threshold:.{digits}f}")


def awake(need: Need, pool: PoolLoad) -> Need:
    """Raise a need to one instance where requests wait: an empty pool is never full."""
    if pool.num_requests == 0 or need.instances >= 1:
        return need
    return Need(1.0, f"{need.reason}, at least 1 for {pool.num_requests} requests", need.held)


class Pools:
    """Prefillers and decoders; convertible decoders are a fixed number beside them."""

    def __init__(
        self, params: PoolsParams, *, hold_down: float = 0.0, num_convertible: int = 0
    ) -> None:
        self._params = params
        self._num_convertible = num_convertible
        self._hold_down = params.hold_down
        self._prefill = Pool(params.bounds("prefill", hold_down=hold_down))
        self._decode = Pool(
            params.bounds("decode", hold_down=hold_down, num_elsewhere=num_convertible)
        )

    def convert(self, num_convertible: int) -> None:
        """Take another number of convertible decoders; they count against all decoders."""
        self._num_convertible = num_convertible
        bounds = self._params.bounds("decode", num_elsewhere=num_convertible)
        self._decode.limit(bounds.least, bounds.most)

    def wait(self, start_up: float) -> None:
        """Keep a pool that grew from shrinking sooner than an instance starts (s)."""
        for pool in (self._prefill, self._decode):
            pool.wait(max(self._hold_down, start_up))

    def hold(self, fleet: Fleet | None, why: str) -> Targets:
        """Keep both pools as they are where a figure is missing."""
        num_prefill = self._prefill.hold(fleet.prefill.num_instances if fleet else None)
        num_decode = self._decode.hold(fleet.decode.num_instances if fleet else None)
        reason = f"{why}: holding {num_prefill} prefill and {num_decode} decode"
        return Targets(num_prefill, num_decode, self._num_convertible, 0, reason)

    def decide(
        self,
        prefill: Need,
        decode: Need,
        fleet: Fleet | None,
        *,
        now: float,
        may_shrink: bool = True,
    ) -> Targets:
        """Size both pools for these needs; ``decode`` counts the convertible decoders, too."""
        num_prefill = self._prefill.decide(
            prefill.instances,
            fleet.prefill.num_instances if fleet else None,
            now=now,
            held=prefill.held,
            may_shrink=may_shrink,
        )
        num_decode = self._decode.decide(
            decode.instances - self._num_convertible,
            fleet.decode.num_instances if fleet else None,
            now=now,
            held=decode.held,
            may_shrink=may_shrink,
        )
        reason = (
            f"prefill {prefill.reason} = {prefill.instances:.2f}, so {num_prefill}; "
            f"decode {decode.reason} = {decode.instances:.2f}"
        )
        reason += f" less {self._num_convertible} convertible" if self._num_convertible else ""
        reason += f", so {num_decode}"
        return Targets(num_prefill, num_decode, self._num_convertible, 0, reason)


class WindowScaling(Scaling):
    """A rule that sizes both pools by means of the last seconds."""

    missing = "no fresh load of the fleet"
    """Why pools hold where a figure is missing."""

    def __init__(self, params: PoolsParams, *windows: float) -> None:
        """Keep means over each of ``windows``, seconds."""
        self._pools = Pools(params)
        self._windows = [WindowMean(seconds) for seconds in windows]

    def begin(self, fleet: Fleet) -> None:
        """Start with pools of the size that they have."""
        self._pools.hold(fleet, "begun")

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Return the targets for the means; hold both pools while a figure is missing."""
        figures = self.figures(rates, fleet)
        if figures is None:
            for window in self._windows:
                window.clear()
            return self._pools.hold(fleet, self.missing)
        means = [window.add(*figures, now=now) for window in self._windows]
        prefill, decode = self.needs(means, fleet or Fleet())
        return self._pools.decide(prefill, decode, fleet, now=now)

    @abstractmethod
    def figures(self, rates: Rates | None, fleet: Fleet | None) -> tuple[float, ...] | None:
        """Return the figures of now, None where they are not known."""

    @abstractmethod
    def needs(self, means: Sequence[tuple[float, ...]], fleet: Fleet) -> tuple[Need, Need]:
        """Return the needs of prefill and decode; ``means``: of the figures, window by window."""
