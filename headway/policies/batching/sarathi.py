"""``sarathi``: stall-free batching (Sarathi-Serve, OSDI '24).

Every decoding request gets its token first; the rest of the chunk goes to prefills in
order of arrival, so that no prefill ever stalls a running answer.
"""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked


class Sarathi(Batching):
    """Decode first, then prefill, each by arrival."""

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank decoding requests first, then by arrival."""
        return Ranked((not candidate.decoding, candidate.arrival_at))


ANSWER = Answer("sarathi", Sarathi, "Sarathi-Serve, OSDI '24")
