"""Costs of a worker, measured while it serves: its pass-time coefficients and its swaps.

A profile's costs stand until the measured ones have drifted from them: ranks and placements hold
for as long as nothing has really changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.cluster import WorkerInfo
from headway.core.worker.rates import MemoryRates
from headway.cost.costs import Costs, link_rate
from headway.cost.pass_time import PassTime, Share
from headway.cost.running_fit import RunningFit
from headway.messages import MAX_COST, MeasuredCosts
from headway.policies.batching.boost import ServiceTime

_DRIFT = 1.25
"""Factor by which a cost has to differ before it is adopted."""
_FIELDS = (
    "first_pass",
    "prefill_per_token",
    "per_request",
    "per_kv_token",
    "swap_per_token",
    "link_bytes_per_s",
)


class CostMeter:
    """A worker's costs, and its report of them."""

    def __init__(
        self, info: WorkerInfo, costs: Costs, rates: MemoryRates, *, can_swap: bool
    ) -> None:
        self.costs = costs if can_swap else replace(costs, swap_per_token=0.0)
        """The costs to decide by."""
        self.report: MeasuredCosts | None = None
        """The measured ones as last adopted; None while there are none."""
        self._info = info
        self._can_swap = can_swap
        self._rates = rates
        profile = costs.profile if costs.first_pass else None  # else it is of another model
        self._fit = RunningFit(profile.pass_time if profile is not None else None)
        self._decoding = ServiceTime()
        self._has_news = False

    def ran(self, shares: Sequence[Share], seconds: float, num_steps: int) -> bool:
        """Take a pass without swaps; return whether other costs were adopted."""
        self._count_decoding(shares, seconds, num_steps)
        if not self._fit.add(shares, seconds, num_steps):
            return False
        has_adopted = self._adopt()
        return self._adopt_decoding() or has_adopted

    def sent(self) -> None:
        """Note that the rate of the link has been measured again."""
        self._adopt()

    def _adopt(self) -> bool:
        """Adopt what is measured now where it has drifted; return whether it has."""
        pass_time, swap = self._known(), self._swap_per_token()
        measured = MeasuredCosts(
            base=pass_time.base,
            per_prefill_token=pass_time.per_prefill_token,
            per_prefill_context=pass_time.per_prefill_context,
            per_request=pass_time.per_request,
            per_kv_token=pass_time.per_kv_token,
            swap_per_token=swap,
            link_per_byte=self._rates.link_per_byte or 0.0,
        )
        info = self._info
        of_passes = Costs.of_passes(pass_time, info.pass_tokens, info.num_units, 2 * swap)
        link = link_rate(measured.link_per_byte)
        updated = self.costs.updated([replace(of_passes, link_bytes_per_s=link)])
        is_news = any(has_drifted(getattr(self.costs, f), getattr(updated, f)) for f in _FIELDS)
        if is_news:
            self.costs, self.report, self._has_news = updated, measured, True
        return is_news

    @property
    def pass_time(self) -> PassTime:
        """The cost of passes, by the profile and as measured; terms of 0 are unknown."""
        return self._fit.pass_time

    def take_news(self) -> MeasuredCosts | None:
        """Return the report once after every change, else None."""
        report = self.report if self._has_news else None
        self._has_news = False
        return report

    def _count_decoding(self, shares: Sequence[Share], seconds: float, num_steps: int) -> None:
        """Count what a pass took beside its prompts, by decoded token."""
        fit, known = self._fit, self._fit.pass_time
        num_decoded, prompts, has_prompts = 0, 0.0, False
        for share in shares:
            num_decoded += share.batch
            if share.prefill_tokens:
                has_prompts = True
                seconds_of_prompts = (
                    known.per_prefill_token * share.prefill_tokens
                    + known.per_prefill_context * share.prefill_context
                )
                prompts = max(prompts, seconds_of_prompts)
        if fit.knows_prefill or not has_prompts:
            self._decoding.passed(seconds - prompts, num_decoded, num_steps)

    def _adopt_decoding(self) -> bool:
        """Adopt the time of a decoded token, which only this worker reads, if it has drifted."""
        measured = self._decoding.seconds_per_token
        used = self.costs.decode_per_token
        if not (self._fit.knows_decode and has_drifted(used, measured)):
            return False
        self.costs = self.costs.updated([Costs(decode_per_token=measured)])
        return True

    def _known(self) -> PassTime:
        """Return the fitted coefficients, without those of a stage that has hardly run here."""
        fit, known = self._fit, self._fit.pass_time
        if not fit.knows_prefill:
            known = replace(known, per_prefill_token=0.0, per_prefill_context=0.0)
        return known if fit.knows_decode else replace(known, per_request=0.0, per_kv_token=0.0)

    def _swap_per_token(self) -> float:
        """Return seconds for one way, 0 if unknown."""
        measured = self._rates.swap_per_token if self._can_swap else None
        return min(measured or 0.0, MAX_COST / 2)


def has_drifted(used: float, measured: float) -> bool:
    """Return whether a measured number differs from the one in use by a quarter."""
    if used == measured or used == 0.0 or measured == 0.0:
        return used != measured
    return not 1 / _DRIFT < measured / used < _DRIFT
