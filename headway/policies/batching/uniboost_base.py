"""``uniboost-base``: UniBoost's second phase, one queue for prefill and decode, ordered by Φ.

Every token moves a request, and whoever ranks better may preempt: it thrashes where KV is short.
"""

from __future__ import annotations

from math import inf

from headway.policies.answer import Answer
from headway.policies.batching.boost import Boosted, BoostParams, effective_work
from headway.policies.batching.protocol import Candidate, Ranked


class UniBoostBase(Boosted):
    """Boosted arrival, prefill and decode alike, with preemption across phases."""

    preempts = True

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by Φ of the effective work, unquantised."""
        work = effective_work(candidate)
        until = inf if self.gamma == inf else work + 1
        return Ranked(self.priority(candidate, work), until)


ANSWER = Answer("uniboost-base", UniBoostBase, "UniBoost, phase 2", BoostParams)
