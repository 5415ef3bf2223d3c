"""Requests that wait, by class: who is shed first."""

from __future__ import annotations

from collections import Counter

from headway.request import Request, StreamKey

_MOST_OF_FREE = 4
"""A tenant may have four times the free places (``scheduler.admission``)."""

_Rank = tuple[bool, int]


def rank_of(request: Request) -> _Rank:
    """Return how far down the class of a request is: who yields comes last, then by priority.

    A request without a class has priority 0, as in vLLM.
    """
    service = request.standing.service
    return (service.yields, service.priority) if service is not None else (False, 0)


class WaitingClasses:
    """The keys of waiting requests by the rank of their class, each in order of arrival."""

    def __init__(self) -> None:
        self._ranks: dict[_Rank, dict[StreamKey, str]] = {}
        self._tenants: Counter[str] = Counter()

    def add(self, request: Request) -> None:
        """Add a request."""
        tenant = request.standing.tenant
        self._ranks.setdefault(rank_of(request), {})[request.key] = tenant
        self._tenants[tenant] += 1

    def remove(self, request: Request) -> None:
        """Remove a request that waits."""
        rank, tenant = rank_of(request), request.standing.tenant
        del self._ranks[rank][request.key]
        if not self._ranks[rank]:
            del self._ranks[rank]
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    def below(self, request: Request, *, is_full: bool) -> StreamKey | None:
        """Return who gives its place to a new request of a more urgent class; None for nobody.

        It is of the lowest class there is. If all places are taken, it is the newest one, of any
        tenant; nobody is shed in vain for a tenant that has too many. Else it is its own tenant's
        oldest one, which has closed that tenant's door.
        """
        tenant = request.standing.tenant
        takes_any = is_full and (not tenant or self._tenants[tenant] < _MOST_OF_FREE)
        for rank in sorted(self._ranks, reverse=True):
            if rank <= rank_of(request):
                break
            keys = self._ranks[rank]
            if takes_any:
                return next(reversed(keys))
            own = next((key for key, whose in keys.items() if whose == tenant), None)
            if own is not None:
                return own
        return None
