"""Virtual token counters: who has been served least goes first (VTC: Sheng et al., OSDI 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

OUTPUT_WEIGHT = 2.0
"""An output token counts as so many input tokens, as in VTC."""
CREDIT = 4.0
"""Chunks that a tenant within its share may have at once, ahead of the others."""
PARTS_BEHIND = 4.0
"""A newcomer that asks for more begins its credit over this behind those who ask for less."""
_MOST_KEPT = 4096


class TokenCounters:
    """Weighted tokens served to each tenant, over its share.

    While two tenants wait, the one with the least counter is served. So their counters differ by
    at most the greatest single charge, and by what is charged afterwards (theorem 4.4 of VTC). A
    newcomer is lifted to the least counter of those who wait, less ``credit``: who has used less
    than its share may send a burst of so many tokens ahead of the others. Idle time earns no more.
    Who asks for more than its credit has none before those who ask for less (``withdraw``).
    """

    def __init__(self, credit: float = 0.0) -> None:
        self.credit = credit
        self._counters: dict[str, float] = {}
        self._fresh: dict[str, float] = {}
        """Newcomers with a credit, and what their counters would be without it."""
        self._left = ""
        """The tenant that last stopped waiting; what it was charged may be corrected since."""

    def of(self, tenant: str) -> float:
        """Return a tenant's counter."""
        return self._counters.get(tenant, 0.0)

    def join(self, tenant: str, others: Iterable[float]) -> None:
        """Note a tenant that begins to wait, and the counters of the ``others`` that do."""
        least = min(others, default=self.of(self._left))
        if self.of(tenant) < least:
            self._fresh[tenant] = least
        self._counters[tenant] = max(self.of(tenant), least - self.credit)

    def withdraw(self, tenant: str, small: Iterable[str]) -> None:
        """Put a newcomer that asks for more than its credit behind those who ask for less.

        Else its flood would stand before all who were here, until it has had the credit.
        """
        if tenant not in self._fresh:
            return  # a flood asks at each of its requests: the others are looked at once
        least = self._fresh.pop(tenant)
        behind = max((each for each in map(self.of, small) if each <= least), default=-inf)
        if behind > -inf:
            behind += self.credit / PARTS_BEHIND
            self._counters[tenant] = max(self.of(tenant), behind)

    def leave(self, tenant: str, waiting: Iterable[str]) -> None:
        """Note a tenant that waits no longer, and forget idle ones if there are very many."""
        self._left = tenant
        self._fresh.pop(tenant, None)
        if len(self._counters) > _MOST_KEPT:
            self._counters = {each: self.of(each) for each in (*waiting, tenant)}

    def charge(self, tenant: str, num_tokens: float, share: float = 1.0) -> None:
        """Add weighted tokens, or take back what was charged too much."""
        self._counters[tenant] = self.of(tenant) + num_tokens / share
