"""The autoscaler's decisions: rates and loads in, replica targets out, once an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.buckets import BUCKET_NAMES, NUM_BUCKETS
from headway.errors import invalid, require_between
from headway.policies.scaling.protocol import Fleet, Rates, Scaling, Targets, VelocitySample

MAX_GATEWAYS = 4096
MAX_SAMPLES = 10_000
MOST = 1 << 53
_FIGURES = (
    "observed_at",
    "window",
    "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s",
)


@dataclass(frozen=True, slots=True)
class RateReport:
    """A gateway's rates per second over its last ``window`` (s).

    ``observed_at`` is by the gateway's clock: it orders that gateway's reports, nothing else.
    ``bucket_tokens_per_s``: input and predicted output tokens by bucket, or empty: not told.
    """

    gateway_id: str
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    observed_at: float = 0.0
    window: float = 0.0
    bucket_tokens_per_s: Sequence[float] = ()

    def __post_init__(self) -> None:
        if not 0 < len(self.gateway_id) <= 256:
            raise invalid("gateway_id", self.gateway_id, "1 to 256 characters long")
        for name in _FIGURES:
            value = getattr(self, name)
            require_between(name, value, 0, MOST)
        if len(self.bucket_tokens_per_s) not in (0, NUM_BUCKETS):
            limit = f"{NUM_BUCKETS} rates, one a bucket, or none"
            raise invalid("bucket_tokens_per_s", len(self.bucket_tokens_per_s), limit)
        for bucket, value in zip(BUCKET_NAMES, self.bucket_tokens_per_s, strict=False):
            require_between(f"bucket_tokens_per_s {bucket}", value, 0, MOST)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """All instances of the model, from who sees them all; it replaces the one before."""

    fleet: Fleet

    def __post_init__(self) -> None:
        for role in ("prefill", "decode", "convertible", "unified"):
            pool = getattr(self.fleet, role)
            for name in ("num_ready", "num_starting", "num_requests", "backlog_tokens"):
                require_between(f"{role} {name}", getattr(pool, name), 0, MOST)
            for name in ("busy", "memory"):
                require_between(f"{role} {name}", getattr(pool, name), 0, 1)


AutoscalerEvent = RateReport | FleetReport


@dataclass(frozen=True, slots=True)
class PublishTargets:
    """Tell the world."""

    targets: Targets
    decided_at: float
    policy: str


class AutoscalerCore:
    """``Core[AutoscalerEvent, PublishTargets]``. Times in seconds.

    A report counts from its arrival for ``staleness`` seconds: a missing or stale figure is not
    zero traffic.
    """

    def __init__(
        self, policy: Scaling, *, now: float, interval: float = 1.0, staleness: float = 5.0
    ) -> None:
        self._policy = policy
        self._interval = interval
        self._staleness = staleness
        self._reports: dict[str, tuple[float, RateReport]] = {}
        self._fleet: tuple[float, Fleet] | None = None
        self._samples: list[VelocitySample] = []
        self._wake_at = now

    @property
    def next_wakeup(self) -> float | None:
        """When the next decision is due."""
        return self._wake_at

    def handle(self, event: AutoscalerEvent, *, now: float) -> Sequence[PublishTargets]:
        """Keep a gateway's newest report; one that was overtaken changes nothing."""
        self._forget_stale(now)
        if isinstance(event, FleetReport):
            self._fleet = (now, event.fleet)
            self._samples += event.fleet.samples
            del self._samples[:-MAX_SAMPLES]
            return ()
        known = self._reports.get(event.gateway_id)
        if known is not None and event.observed_at < known[1].observed_at:
            return ()
        if known is None and len(self._reports) >= MAX_GATEWAYS:
            raise invalid(
                "the number of gateways", len(self._reports) + 1, f"at most {MAX_GATEWAYS}"
            )
        self._reports[event.gateway_id] = (now, event)
        return ()

    def wake(self, *, now: float) -> Sequence[PublishTargets]:
        """Decide."""
        self._wake_at = now + self._interval
        self._forget_stale(now)
        targets = self._policy.targets(self._rates(), self._take_fleet(), now=now)
        return (PublishTargets(targets, now, self._policy.name),)

    def _forget_stale(self, now: float) -> None:
        for gateway_id, (arrived_at, _) in list(self._reports.items()):
            if now - arrived_at > self._staleness:
                del self._reports[gateway_id]
        if self._fleet is not None and now - self._fleet[0] > self._staleness:
            self._fleet = None

    def _take_fleet(self) -> Fleet | None:
        """The fleet, if it is fresh; each sample is told once."""
        if self._fleet is None:
            return None
        fleet = replace(self._fleet[1], samples=tuple(self._samples))
        self._samples.clear()
        return fleet

    def _rates(self) -> Rates | None:
        fresh = [report for _, report in self._reports.values()]
        if not fresh:
            return None
        return Rates(
            sum(report.requests_per_s for report in fresh),
            sum(report.input_tokens_per_s for report in fresh),
            sum(report.output_tokens_per_s for report in fresh),
            _added([report.bucket_tokens_per_s for report in fresh]),
        )


def _added(by_bucket: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The sum, bucket by bucket; nothing where a gateway does not tell its own."""
    if not all(by_bucket):
        return ()
    return tuple(sum(rates) for rates in zip(*by_bucket, strict=True))
