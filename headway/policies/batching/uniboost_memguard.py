"""``uniboost-memguard``: UniBoost's third phase, priorities that move at levels only.

Generated tokens enter Φ quantised, ``w_q = k · 2^⌊log2(w/k)⌋`` and 0 below k. Quantising alone does
not bound preemptions, for every arrival may preempt again: a request also has one voluntary
preemption to give at each level. So one that generates S tokens is voluntarily preempted at most
``⌊log2(S/k)⌋ + 2`` times (once, below k).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between
from headway.cost.costs import Constant, Costs, Source
from headway.errors import invalid
from headway.policies.answer import Answer
from headway.policies.batching.boost import Boosted, BoostParams, ServiceTime, prompt_work
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.readers import CostReader
from headway.request import StreamKey


def level_of(num_tokens: int, k: int) -> int:
    """Return the level: 0 below ``k`` tokens, i from ``k · 2^(i−1)``."""
    return (num_tokens // k).bit_length()


def quantised(num_tokens: int, k: int) -> int:
    """Return w_q: the tokens at which the level began."""
    level = level_of(num_tokens, k)
    return k << (level - 1) if level else 0


def next_level_at(num_tokens: int, k: int) -> int:
    """Return the tokens at which the next level begins."""
    return k << level_of(num_tokens, k)


@dataclass(frozen=True)  # without slots: it is a second base of others
class CreditParams(Bounded):
    """``k``: tokens of the first level, 1 to 2^20, a multiple of the KV block size.

    ``swap_per_token``: seconds in which a token's KV goes to host memory and comes back; 0: as the
    worker's swaps take, by profile or measured. Where there are none it is computed again.
    """

    k: int = 64
    swap_per_token: float = between(0, 1, default=0.0)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.k != int(self.k) or not 1 <= self.k <= 1 << 20:
            raise invalid("k", self.k, "a whole number of tokens from 1 to 2^20")


class MemGuard(Batching, CostReader):
    """A bound of voluntary preemptions: one a request and level, for more than a swap costs."""

    preempts = True

    def __init__(self, params: CreditParams, service: ServiceTime) -> None:
        self.k = int(params.k)
        self._given_swap = params.swap_per_token
        self._service = service
        self._preempted_at: dict[StreamKey, int] = {}
        self.learn(Costs())

    def learn(self, costs: Costs) -> None:
        """Take the worker's swap and prefill costs."""
        swap, again = costs.swap_per_token, costs.prefill_per_token
        self._known: Constant | None = None
        if self._given_swap:
            self._known = Constant("swap", self._given_swap, Source.GIVEN)
        elif swap and swap <= (again or inf):
            self._known = Constant("swap", swap, costs.source_of("swap_per_token"))
        elif again:
            self._known = Constant("recompute", again, costs.source_of("prefill_per_token"))

    def constants(self) -> Sequence[Constant]:
        """Return the seconds until a token's KV is back."""
        return (self._restore,)

    @property
    def _restore(self) -> Constant:
        """Seconds until a token's KV is back: by swap, or computed again, whichever is sooner.

        While nothing is known it is computed again at the mean service time.
        """
        known = self._known
        return known or Constant("recompute", self._service.seconds_per_token, Source.MEASURED)

    @abstractmethod
    def gain(self, victim: Candidate, for_: Candidate) -> float:
        """Return the seconds that are won if the victim yields its blocks."""

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Allow one preemption a request and level, if it gains more than the swap costs."""
        return self.has_credit(victim) and self.gain(victim, for_) > self.swap_cost(victim)

    def has_credit(self, victim: Candidate) -> bool:
        """Return whether it was not voluntarily preempted at this level before."""
        return self._preempted_at.get(victim.key, -1) < level_of(victim.num_output_tokens, self.k)

    def swap_cost(self, victim: Candidate) -> float:
        """Seconds until its KV is back, out and in."""
        return victim.num_kv_tokens * self._restore.value

    def preempted(self, victim: Candidate, *, voluntary: bool) -> None:
        """Spend the level's credit on a voluntary preemption; one by need costs none."""
        if voluntary:
            self._preempted_at[victim.key] = level_of(victim.num_output_tokens, self.k)

    def levels_spent(self, key: StreamKey) -> int:
        """Return the levels up to the last one at which it was voluntarily preempted."""
        return self._preempted_at.get(key, -1) + 1

    def recall(self, key: StreamKey, levels_spent: int) -> None:
        """Count credits spent elsewhere; they never come back."""
        if levels_spent > self.levels_spent(key):
            self._preempted_at[key] = levels_spent - 1

    def forget(self, key: StreamKey) -> None:
        """Forget its credits."""
        self._preempted_at.pop(key, None)


@dataclass(frozen=True, slots=True)
class MemGuardParams(CreditParams, BoostParams):
    """Parameters of the boost and of the credits."""

    def __post_init__(self) -> None:
        BoostParams.__post_init__(self)
        CreditParams.__post_init__(self)


class UniBoostMemGuard(MemGuard, Boosted):
    """Boosted arrival over service quantised at doubling levels, one preemption a level."""

    def __init__(self, params: MemGuardParams | None = None) -> None:
        params = params or MemGuardParams()
        Boosted.__init__(self, params)
        MemGuard.__init__(self, params, self._service)

    def learn(self, costs: Costs) -> None:
        """Take the times of tokens, and of swaps."""
        Boosted.learn(self, costs)
        MemGuard.learn(self, costs)

    def constants(self) -> Sequence[Constant]:
        """Return what a token's KV takes to be back, and τ_p and τ_d."""
        return *MemGuard.constants(self), *Boosted.constants(self)

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by Φ of the prompt's work and the quantised rest."""
        num_left = next_level_at(candidate.num_output_tokens, self.k) - candidate.num_output_tokens
        until = inf if self.gamma == inf else candidate.attained_tokens + num_left
        return Ranked(self.phi(candidate), until)

    def phi(self, candidate: Candidate) -> tuple[float, float]:
        """Return Φ of max(w_q, s_pre − h): generated tokens come on top of the prompt."""
        work = prompt_work(candidate) + quantised(candidate.num_output_tokens, self.k)
        return self.priority(candidate, max(1, work))

    def gain(self, victim: Candidate, for_: Candidate) -> float:
        """Seconds by which the better one ranks before its victim; any are many at γ = 0."""
        return inf if self.gamma == 0.0 else self.phi(victim)[0] - self.phi(for_)[0]


ANSWER = Answer("uniboost-memguard", UniBoostMemGuard, "UniBoost, phase 3", MemGuardParams)
