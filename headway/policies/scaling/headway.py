"""``headway``: unified instances, and prefillers and decoders where these are fewer.

``headway.cost.kept`` has the rule, ``docs/topology.md`` what it predicts. It decides by the
mean traffic of a minute, the strictest promises of what came in that minute, and the profile's
pass times as far as live passes confirm them. A split is sized as by ``tokenscale``, its
decoders for passes that keep the promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, inf

from headway.bounds import between, over
from headway.cost.costs import Constant, Source
from headway.cost.kept import Pledge, kept_by, pays_split
from headway.cost.schema import Profile
from headway.cost.topology import Demand, Needs, is_kept_by
from headway.policies.answer import Answer
from headway.policies.dispatch.feasibility import TtftSlos
from headway.policies.readers import chosen
from headway.policies.scaling.fixed import MAX_INSTANCES
from headway.policies.scaling.pool import Bounds, Pool
from headway.policies.scaling.pools import Need
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Targets
from headway.policies.scaling.tokenscale import TokenScale, TokenScaleParams
from headway.policies.scaling.window import WindowMean, WindowPeak

_SLOS = TtftSlos()
_SOURCES = {
    Source.GIVEN: "given",
    Source.PROMISE: "a class's promise",
    Source.DEFAULT: "by prompt length",
}
_KEPT = 0.98
"""Weight that earlier passes keep with each sample of an instance's."""

_BEYOND = 2
"""A limit is dropped where this many times the instances allowed would not keep it.

Not at once: the fleet would shrink as its load grows. A limit of twice the base of a pass, or a
looser one, makes a request cost at most twice as much, so here the fleet is full without it, too.
"""


@dataclass(frozen=True, slots=True)
class TopologyParams(TokenScaleParams):
    """As ``tokenscale``, and the choice between both topologies.

    ``max_unified``: unified instances at most; 0: prefillers and decoders alone, as ``tokenscale``.
    ``inter_token_limit``: seconds between the tokens of all requests (None: the strictest promise
    of the classes that come). ``choice_window``: seconds of traffic that the choice reads.
    ``gain``: the share by which one topology must need less than the other before it is left, or
    keep more requests in time.
    """

    max_unified: int = between(0, MAX_INSTANCES, default=0)
    inter_token_limit: float | None = over(0, default=None)
    choice_window: float = between(1, 86_400, default=60.0)
    gain: float = between(0, 0.9, default=0.1)


class HeadwayScaling(TokenScale):
    """Unified instances until prefillers and decoders are fewer, each sized by its tokens."""

    name = "headway"
    unifies = True

    def __init__(self, params: TopologyParams | None = None) -> None:
        params = params or TopologyParams()
        super().__init__(params)
        self._own = params
        self.unifies = bool(params.max_unified)
        hold_down = max(params.hold_down, self._start_up)
        least = min(1, params.max_unified)
        self._unified = Pool(Bounds(least, params.max_unified, hold_down, params.margin))
        self._is_split = not params.max_unified
        self._better_since = inf
        self._traffic = WindowMean(params.choice_window)
        self._strictest = WindowPeak(params.choice_window)
        self._soonest = WindowPeak(params.choice_window)
        self._kv_tokens = self._num_decoded = 0.0
        self._mean: Sequence[float] = (0.0, 0.0, 0.0)  # requests, input and output tokens a second
        self._now = Rates(0.0, 0.0, 0.0)
        self._limit = Constant("inter-token limit", inf, Source.DEFAULT)
        self._is_beyond_all = False

    def constants(self) -> Sequence[Constant]:
        """Return the burst ratio, and the limits that classes promise or that were given."""
        limits = (self._limit, self._first_token)
        return (*super().constants(), *(e for e in limits if e.source is not Source.DEFAULT))

    def begin(self, fleet: Fleet) -> None:
        """Start with the instances that there are, unified ones if there are none."""
        super().begin(fleet)
        if self._own.max_unified:
            split = fleet.prefill.num_instances and fleet.decode.num_instances
            self._is_split = bool(split) and not fleet.unified.num_instances
            self._unified.hold(fleet.unified.num_instances)

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Return the instances of the topology that needs fewer; hold both without rates."""
        self._read(rates, fleet, now)
        split = super().targets(rates, fleet, now=now)
        if not self._own.max_unified:
            return split
        if rates is None:
            self._better_since = inf
            num_unified = self._unified.hold(fleet.unified.num_instances if fleet else None)
            return split if self._is_split else _unified(num_unified, split.reason)
        why = self._choose(now)
        self._unified.wait(max(self._own.hold_down, self._start_up))
        need = self._unified_need(fleet)
        num_unified = self._unified.decide(
            need.instances,
            fleet.unified.num_instances if fleet else None,
            now=now,
            held=need.held,
            may_shrink=fleet is not None,
        )
        if self._is_split:
            return replace(split, reason=f"{why}; {split.reason}")
        return _unified(num_unified, f"{why}; {need.reason}, so {num_unified}")

    # --- what is read -----------------------------------------------------------------

    def _read(self, rates: Rates | None, fleet: Fleet | None, now: float) -> None:
        """Take in the traffic, the promises that it was made, and the KV of who decodes."""
        for sample in fleet.samples if fleet is not None else ():
            if sample.stage == "decode" and sample.work.batch:
                self._kv_tokens = _KEPT * self._kv_tokens + sample.work.kv_tokens
                self._num_decoded = _KEPT * self._num_decoded + sample.work.batch
        if rates is None:
            self._traffic.clear()
            return
        output = fsum(rates.bucket_tokens_per_s) - rates.input_tokens_per_s
        output = output if rates.bucket_tokens_per_s else rates.output_tokens_per_s
        plain = (rates.requests_per_s, rates.input_tokens_per_s, max(0.0, output))
        self._mean = self._traffic.add(*plain, now=now)
        self._strictest.add(1 / (rates.inter_token_limit or inf), now=now)
        self._soonest.add(1 / (rates.first_token_limit or inf), now=now)
        given = self._own.inter_token_limit
        self._limit = _promised("inter-token limit", self._strictest, inf, given)
        self._is_beyond_all = self._exceeds_all(1 if self._is_beyond_all else _BEYOND)  # hysteresis

    def _exceeds_all(self, times: float) -> bool:
        """Return whether the limit needs more than ``times`` the instances allowed, unified or not.

        Every instance is taken to be full.
        """
        needs, own = Needs.of(self._demand(), self._deployed(), self._limit.value), self._own
        if needs.unified <= times * own.max_unified:
            return False
        return needs.prefill > times * own.max_prefill or needs.decode > times * own.max_decode

    def _demand(self) -> Demand:
        """Return the mean requests of the window; the KV of who decodes is measured if it can."""
        per_s, input_tokens, output_tokens = self._mean
        if per_s <= 0:
            return Demand.of(0.0, 0.0, 0.0)
        demand = Demand.of(per_s, input_tokens / per_s, output_tokens / per_s)
        if not self._num_decoded:
            return demand
        return replace(demand, kv_tokens=self._kv_tokens / self._num_decoded)

    def _deployed(self) -> Profile:
        """Return the profile with its pass times as live passes correct them."""
        prefill, decode = (self._learned.factor(stage) for stage in ("prefill", "decode"))
        times = self._decode_profile.pass_time
        return replace(
            self._decode_profile,
            pass_time=replace(
                times,
                base=times.base / decode,
                per_request=times.per_request / decode,
                per_kv_token=times.per_kv_token / decode,
                per_prefill_token=times.per_prefill_token / prefill,
                per_prefill_context=times.per_prefill_context / prefill,
            ),
        )

    # --- what is chosen ---------------------------------------------------------------

    @property
    def _kept_limit(self) -> float:
        """Return the limit, or none where no pass or no fleet within the bounds keeps it."""
        return self._limit.value if self._is_kept_alone and not self._is_beyond_all else inf

    @property
    def _is_kept_alone(self) -> bool:
        """Return whether a request that decodes alone keeps the limit."""
        return is_kept_by(self._deployed(), self._limit.value)

    def _needs(self) -> Needs:
        needs = Needs.of(self._demand(), self._deployed(), self._kept_limit)
        return needs.over(self._params.target_utilisation)

    def _choose(self, now: float) -> str:
        """Choose the topology, and say why: it changes when the other was better for a while."""
        if self._is_better_split() == self._is_split:
            self._better_since = inf
        else:
            self._better_since = min(self._better_since, now)
            if now - self._better_since >= max(self._own.hold_down, self._start_up):
                self._is_split, self._better_since = not self._is_split, inf
        return self._said(self._needs())

    def _is_better_split(self) -> bool:
        """Return whether instances are to be split now."""
        own = self._own
        return pays_split(
            self._demand(),
            self._deployed(),
            self._goal,
            own.max_unified,
            planned=own.target_utilisation,
            gain=own.gain,
            is_split=self._is_split,
        )

    @property
    def _goal(self) -> Pledge:
        """Return what the choice is to keep."""
        return Pledge(self._kept_limit, self._first_token.value, self._own.choice_window)

    @property
    def _first_token(self) -> Constant:
        """Return the strictest promise of a first token; without one, what dispatch plans with."""
        usual = _SLOS.ttft_slo(round(self._demand().prompt_tokens))
        return _promised("first-token limit", self._soonest, usual)

    def _said(self, needs: Needs) -> str:
        """Return both sides of the inequality with their sources."""
        limit = self._limit
        within = "no limit between tokens"
        if limit.value < inf:
            none = "not even all instances allowed keep" if self._is_kept_alone else "no pass keeps"
            kept = "" if needs.limit < inf else f", which {none}"
            within = (
                f"within {1000 * limit.value:g} ms between tokens ({_SOURCES[limit.source]}{kept})"
            )
        factors = [self._learned.factor(stage) for stage in ("prefill", "decode")]
        is_measured = any(factor != 1.0 for factor in factors)
        times = "pass times measured" if is_measured else "pass times by profile"
        num_prefill, num_decode = needs.num_split
        most, keeps = self._own.max_unified, ""
        if min(needs.num_unified, num_prefill + num_decode) > most >= 2:
            shares = kept_by(self._demand(), self._deployed(), self._goal, most)
            soon = self._first_token
            keeps = (
                f"; {most} keep {shares.unified:.0%} and {shares.split:.0%} in time, the first "
                f"token within {soon.value:g} s ({_SOURCES[soon.source]})"
            )
        return (
            f"{'split' if self._is_split else 'unified'}: {within}, {times}, unified "
            f"{needs.unified:.2f} = {needs.num_unified}, split {needs.prefill:.2f} + "
            f"{needs.decode:.2f} = {num_prefill} + {num_decode} (the other has to need fewer with "
            f"{self._own.gain:.0%} off){keeps}"
        )

    # --- how many ---------------------------------------------------------------------

    def _prefill_need(self, rates: Rates, pool: PoolLoad | None) -> Need:
        """Return the rule's need; the rule has no network, so where that is slower it counts."""
        need = super()._prefill_need(rates, pool)
        by_rule = self._by_rule(need, "prefill", rates, rates.input_tokens_per_s, pool)
        is_bound = self._prefill_velocity == self._network
        return need if is_bound and need.instances > by_rule.instances else by_rule

    def _decode_need(self, rates: Rates, pool: PoolLoad | None) -> Need:
        self._now = rates
        need = super()._decode_need(rates, pool)
        return self._by_rule(need, "decode", rates, fsum(self._by_bucket(rates)), pool)

    def _by_rule(
        self, need: Need, stage: str, rates: Rates, tokens_per_s: float, pool: PoolLoad | None
    ) -> Need:
        """Return a stage's need by the rule that chose it; the backlog is like what arrives."""
        demand = replace(self._demand(), requests_per_s=rates.requests_per_s)
        if not self._own.max_unified or tokens_per_s <= 0 or demand.output_tokens <= 0:
            return need
        needs = Needs.of(demand, self._deployed(), self._kept_limit)
        own = getattr(needs.over(self._params.target_utilisation), stage)
        backlog = pool.backlog_tokens if pool is not None else 0
        more = 1 + backlog / (self._drain_target * tokens_per_s)
        reason = (
            f"{rates.requests_per_s:.2f} requests/s × {own / max(rates.requests_per_s, 1e-9):.3g} "
            f"s and {backlog} tokens waiting"
        )
        return Need(own * more, reason, need.held)

    def _unified_need(self, fleet: Fleet | None) -> Need:
        """Return the unified instances for what arrives now, and for what waits."""
        per_s, profile = self._now.requests_per_s, self._deployed()
        demand = replace(self._demand(), requests_per_s=per_s)
        share = self._params.target_utilisation
        need = Needs.of(demand, profile, self._kept_limit).over(share).unified
        unified = fleet.unified if fleet is not None else PoolLoad(0)
        backlog = unified.backlog_tokens + (fleet.prefill.backlog_tokens if fleet else 0)
        waiting = backlog * profile.pass_time.per_prefill_token / self._drain_target / share
        held = unified.num_ready * unified.memory / self._params.memory_ceiling
        reason = f"{per_s:.2f} requests/s and {backlog} tokens waiting = {need + waiting:.2f}"
        return Need(need + waiting, reason, held)


def _promised(name: str, peak: WindowPeak, default: float, given: float | None = None) -> Constant:
    """Return a limit as it was given, else the strictest promise of the window, seconds."""
    promised = 1 / peak.value if peak.value else None
    return chosen(name, given, promised, Source.PROMISE, default)


def _unified(number: int, reason: str) -> Targets:
    return Targets(0, 0, 0, number, reason)


ANSWER = Answer("headway", HeadwayScaling, "Headway", TopologyParams)
