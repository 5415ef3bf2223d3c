"""Events and decisions of the autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from headway.core.autoscaler.starts import StartsReport
from headway.cost.buckets import BUCKET_NAMES, NUM_BUCKETS
from headway.cost.costs import Constant
from headway.errors import invalid, require_between, require_over
from headway.policies.scaling.fixed import MAX_INSTANCES
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Targets

MOST = 1 << 53
ROLES = ("prefill", "decode", "convertible", "unified")
STAGES = ("prefill", "decode")
_FIGURES = (
    "observed_at",
    "window",
    "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s",
)


@dataclass(frozen=True, slots=True)
class RateReport:
    """A gateway's rates per second over its last ``window`` (s)."""

    gateway_id: str
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    observed_at: float = 0.0
    """An instant of the gateway's own clock, which only orders that gateway's reports."""
    window: float = 0.0
    bucket_tokens_per_s: Sequence[float] = ()
    """Input and predicted output tokens by bucket; empty if not reported."""
    model: str = ""
    """The gateway's model, "" if there is only one."""
    burst_tokens_per_s: float | None = None
    """Input tokens labelled as burst; None if the gateway labels none."""
    inter_token_limit: float | None = None
    """The strictest promise between tokens of what arrived, s; None if none was made."""
    first_token_limit: float | None = None
    """The strictest promise of a first token of what arrived, s; None if none was made."""

    @classmethod
    def of(
        cls, gateway_id: str, rates: Rates, window: float, observed_at: float, model: str = ""
    ) -> RateReport:
        """Return the report of a gateway's rates."""
        measured = {field.name: getattr(rates, field.name) for field in fields(Rates)}
        return cls(gateway_id, **measured, observed_at=observed_at, window=window, model=model)

    def __post_init__(self) -> None:
        if not 0 < len(self.gateway_id) <= 256:
            raise invalid("gateway_id", self.gateway_id, "1 to 256 characters long")
        for name in _FIGURES:
            value = getattr(self, name)
            require_between(name, value, 0, MOST)
        if self.burst_tokens_per_s is not None:
            require_between("burst_tokens_per_s", self.burst_tokens_per_s, 0, MOST)
        for name in ("inter_token_limit", "first_token_limit"):
            if (limit := getattr(self, name)) is not None:
                require_over(name, limit, 0)
        if len(self.bucket_tokens_per_s) not in (0, NUM_BUCKETS):
            number = f"{NUM_BUCKETS} rates, one a bucket, or none"
            raise invalid("bucket_tokens_per_s", len(self.bucket_tokens_per_s), number)
        for bucket, value in zip(BUCKET_NAMES, self.bucket_tokens_per_s, strict=False):
            require_between(f"bucket_tokens_per_s {bucket}", value, 0, MOST)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """All instances of a model ("" if there is only one), from a scheduler that sees them all.

    Replaces the model's previous report.
    """

    fleet: Fleet
    model: str = ""

    def __post_init__(self) -> None:
        for role in ROLES:
            pool = getattr(self.fleet, role)
            for name in ("num_ready", "num_starting", "num_requests", "backlog_tokens"):
                require_between(f"{role} {name}", getattr(pool, name), 0, MOST)
            for name in ("busy", "memory"):
                require_between(f"{role} {name}", getattr(pool, name), 0, 1)
        if self.fleet.network_tokens_per_s is not None:
            require_over("network_tokens_per_s", self.fleet.network_tokens_per_s, 0)
        for sample in self.fleet.samples:
            require_between("num_passes of a sample", sample.work.num_passes, 1, MOST)
            if sample.stage not in STAGES:
                raise invalid("stage", sample.stage, f"one of {', '.join(STAGES)}")


@dataclass(frozen=True, slots=True)
class OrderedReport:
    """Ordered instances by role; replaces the previous report.

    None for a role whose number is unknown. Before any decision it is also the policy's starting
    point: an autoscaler that restarts must not begin with the minimum.
    """

    num_prefill: int | None = None
    num_decode: int | None = None
    num_convertible: int | None = None
    num_unified: int | None = None

    def __post_init__(self) -> None:
        for role in ROLES:
            value = self.of(role)
            if value is not None:
                require_between(f"num_{role}", value, 0, MAX_INSTANCES)

    def of(self, role: str) -> int | None:
        """Return the number of instances of a role."""
        number: int | None = getattr(self, f"num_{role}")
        return number

    @property
    def fleet(self) -> Fleet:
        """A fleet whose instances are all starting."""
        pools = [PoolLoad(0, num_starting=self.of(role) or 0) for role in ROLES]
        return Fleet(pools[0], pools[1], pools[2], pools[3])


AutoscalerEvent = RateReport | FleetReport | OrderedReport | StartsReport


@dataclass(frozen=True, slots=True)
class PublishTargets:
    """Targets to publish, and the figures that they come from (None: none was fresh)."""

    targets: Targets
    decided_at: float
    policy: str
    rates: Rates | None = None
    fleet: Fleet | None = None
    constants: Sequence[Constant] = ()
    """Constants that the decision used, each with its source."""
