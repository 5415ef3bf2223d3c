"""``tokenscale``: instances from token rates over token velocities (TokenScale, section IV-C).

``docs/tokenscale.md`` says what the paper leaves open and how that is settled here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import ClassVar

from headway.bounds import between, over
from headway.cost.buckets import NUM_BUCKETS
from headway.cost.costs import Constant
from headway.cost.schema import Profile, require_profile
from headway.policies.answer import Answer
from headway.policies.scaling.burst_ratio import Convertibles
from headway.policies.scaling.learned import LearnedParams, LearnedVelocity, velocity_sample
from headway.policies.scaling.pools import Need, Pools, PoolsParams
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Scaling, Targets
from headway.policies.scaling.window import WindowMean, smoothed

_LONGEST = 1e12  # tokens: what a mean may come to where requests are next to none


@dataclass(frozen=True, slots=True)
class TokenScaleParams(PoolsParams):
    """``profile`` of the prefillers; ``decode_profile``: None for the same.

    ``convertibles``: whether ⌈``max_decode`` × ``burst_ratio``⌉ decoders are convertible (they
    count against ``max_decode``). ``burst_ratio``: share of input tokens that comes in bursts
    (None: as gateways label it, 0.1 until that is measured; the convertibles are then no more than
    the decoders that the traffic needs). ``target_utilisation``: planned share
    of every velocity. ``rate_window``: seconds of rates that count as now. ``start_up``: seconds an
    instance needs to start while none was measured (None: the profile's); no pool shrinks sooner
    after it grew.
    ``drain_target``: seconds in which a backlog is to be gone (None: the start-up, but no sooner
    than rates show it). ``memory_ceiling``: share of KV memory that the smaller pool may have in
    use. ``velocity_weight``: of one live pass.
    """

    profile: Profile | None = None
    decode_profile: Profile | None = None
    target_utilisation: float = between(0.05, 1, default=0.85)
    convertibles: bool = True
    burst_ratio: float | None = between(0, 1, default=None)
    rate_window: float = between(0.1, 3600, default=2.0)
    start_up: float | None = between(0, 86_400, default=None)
    drain_target: float | None = over(0, default=None)
    memory_ceiling: float = between(0.1, 1, default=0.9)
    velocity_weight: float = between(0, 1, default=0.005)


class TokenScale(Scaling):
    """Arriving tokens over the velocity of each stage, with headroom and without swinging."""

    name = "tokenscale"
    converts: ClassVar[bool] = True

    def __init__(self, params: TokenScaleParams | None = None) -> None:
        params = params or TokenScaleParams()
        self._params = params
        self._prefill_profile = require_profile("scaling tokenscale", params.profile)
        self._decode_profile = params.decode_profile or self._prefill_profile
        self._prefill_profile.prefill_velocity()  # an error where it is not known
        self._network: float | None = None
        self._decode_velocities = [
            self._decode_profile.decode_velocity(bucket) for bucket in range(NUM_BUCKETS)
        ]
        profiled = self._decode_profile.start_up
        self._known_start_up = profiled if params.start_up is None else params.start_up
        self._start_up = self._known_start_up
        self._convertibles = Convertibles(params.max_decode, params.burst_ratio)
        self._pools = Pools(params, hold_down=self._start_up, num_convertible=self._num_convertible)
        self._window = WindowMean(params.rate_window)
        self._learned = LearnedVelocity(LearnedParams(weight=params.velocity_weight))

    @property
    def _num_convertible(self) -> int:
        return self._convertibles.num if self._params.convertibles else 0

    def constants(self) -> Sequence[Constant]:
        """Return the burst ratio."""
        return (self._convertibles.constant,) if self._params.convertibles else ()

    def begin(self, fleet: Fleet) -> None:
        """Start with pools of the size that they have."""
        self._pools.hold(fleet, "begun")

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Return ``I_P``, ``I_D − I_conv`` and ``I_conv`` (equations 2 to 4).

        Without rates everything holds. Without a fleet the backlog and what is in memory are
        unknown, which is not 0: pools grow and do not shrink.
        """
        for sample in fleet.samples if fleet is not None else ():
            is_decode = sample.stage == "decode"
            profile = self._decode_profile if is_decode else self._prefill_profile
            self._learned.observe(velocity_sample(sample, profile.pass_time))
        if fleet is not None:
            measured = fleet.start_up
            self._start_up = self._known_start_up if measured is None else measured.seconds
            self._pools.wait(self._start_up)
            self._network = fleet.network_tokens_per_s
        if rates is None:
            self._window.clear()
            return self._pools.hold(fleet, "no fresh rates")
        seen = smoothed(self._window, rates, now=now)
        decode = self._decode_need(seen, fleet.decode if fleet is not None else None)
        self._convertibles.observe(rates, decode.instances, now=now)
        self._pools.convert(self._num_convertible)
        targets = self._pools.decide(
            self._prefill_need(seen, fleet.prefill if fleet is not None else None),
            decode,
            fleet,
            now=now,
            may_shrink=fleet is not None,
        )
        notes = [f"{each.name} {each.value:.2g} ({each.source.value})" for each in self.constants()]
        if fleet is None:
            notes.append("backlog unknown: not shrinking")
        return _with_notes(targets, [*notes, *self._learned.drifts()])

    @property
    def _drain_target(self) -> float:
        """An instance that is ordered for a backlog is not there sooner than it starts, s."""
        given = self._params.drain_target
        return max(self._start_up, self._params.rate_window) if given is None else given

    @property
    def _prefill_velocity(self) -> float:
        """Tokens/s of a prefiller: its passes, or the network where that is slower."""
        factor = self._learned.factor("prefill")
        return self._prefill_profile.prefill_velocity(factor, self._network)

    def _prefill_need(self, rates: Rates, pool: PoolLoad | None) -> Need:
        """``λ_in / min(V_P, V_N)``, the backlog counted as tokens over the drain target."""
        velocity = self._prefill_velocity
        planned = velocity * self._params.target_utilisation
        backlog = pool.backlog_tokens if pool is not None else 0
        rate = rates.input_tokens_per_s + backlog / self._drain_target
        reason = (
            f"({rates.input_tokens_per_s:.0f} + {backlog}/{self._drain_target:.3g}) tokens/s"
            f" over {self._params.target_utilisation:g} × {velocity:.0f}"
        )
        if velocity == self._network:
            reason += " (V_N, measured)"
        return Need(rate / planned, reason)

    def _decode_need(self, rates: Rates, pool: PoolLoad | None) -> Need:
        """``Σ_b λ_b / V_D(b)``; the backlog is taken to be like what arrives."""
        by_bucket = self._by_bucket(rates)
        factor = self._learned.factor("decode")
        full = fsum(
            rate / (velocity * factor)
            for rate, velocity in zip(by_bucket, self._decode_velocities, strict=True)
        )
        total = fsum(by_bucket)
        velocity = total / full if full > 0 else min(self._decode_velocities) * factor
        backlog = pool.backlog_tokens if pool is not None else 0
        rate = total + backlog / self._drain_target
        reason = (
            f"({total:.0f} + {backlog}/{self._drain_target:.3g}) tokens/s over "
            f"{self._params.target_utilisation:g} × {velocity:.0f}"
        )
        held = pool.num_ready * pool.memory / self._params.memory_ceiling if pool else 0.0
        return Need(rate / (velocity * self._params.target_utilisation), reason, held)

    def _by_bucket(self, rates: Rates) -> Sequence[float]:
        """λ_b; where gateways do not tell it, all requests are taken to be of the mean size."""
        if rates.bucket_tokens_per_s:
            return rates.bucket_tokens_per_s
        by_bucket = [0.0] * NUM_BUCKETS
        if rates.requests_per_s > 0:
            mean_input = min(rates.input_tokens_per_s / rates.requests_per_s, _LONGEST)
            mean_output = min(rates.output_tokens_per_s / rates.requests_per_s, _LONGEST)
            buckets = self._decode_profile.buckets
            bucket = buckets.of(mean_input, mean_output)
            guess = rates.requests_per_s * buckets.lengths(bucket)[1]
            by_bucket[bucket] = rates.input_tokens_per_s + (rates.output_tokens_per_s or guess)
        return by_bucket


def _with_notes(targets: Targets, notes: Sequence[str]) -> Targets:
    if not notes:
        return targets
    reason = "; ".join([targets.reason, *notes])
    return Targets(
        targets.num_prefill,
        targets.num_decode,
        targets.num_convertible,
        targets.num_unified,
        reason,
    )


ANSWER = Answer("tokenscale", TokenScale, "TokenScale, section IV-C", TokenScaleParams)
