"""``fcfs``: first come, first served, prefill and decode alike (vLLM's default order)."""

from __future__ import annotations

from collections.abc import Iterable

from headway.policies.batching.protocol import C


class Fcfs:
    """Earliest arrival first."""

    def order(self, candidates: Iterable[C], *, now: float) -> list[C]:
        """By arrival, then key."""
        return sorted(candidates, key=lambda c: (c.arrival_at, c.key))
