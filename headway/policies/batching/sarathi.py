"""``sarathi``: stall-free batching (Sarathi-Serve, OSDI '24).

Every decoding request gets its token first; the rest of the chunk goes to prefills in
order of arrival, so that no prefill ever stalls a running answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.policies.batching.protocol import C


class Sarathi:
    """Decode first, then prefill, each by arrival."""

    def order(self, candidates: Iterable[C], *, now: float) -> list[C]:
        """By phase, then arrival, then key."""
        return sorted(candidates, key=lambda c: (not c.decoding, c.arrival_at, c.key))
