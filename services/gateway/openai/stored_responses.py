"""Responses that a later one may continue: few, of a bounded length, for an hour, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from headway.errors import Code, HeadwayError
from services.gateway.api_call import ResponseHistory

MOST_STORED = 4096


class _Stored(NamedTuple):
    history: ResponseHistory
    stored_at: float


class StoredResponses:
    """The stored responses of one gateway, by tenant and id.

    ``most_bytes``: of all together; ``most_each``: of one, longer ones could not be continued.
    ``longest``: seconds that one is kept. Where there are too many, the oldest one of the tenant
    that has most goes: nobody's flood takes another's. Any thread may look one up.
    """

    def __init__(
        self, most_bytes: int, most_each: int, longest: float, now: Callable[[], float]
    ) -> None:
        self._most_bytes, self._most_each = most_bytes, min(most_each, most_bytes)
        self._longest, self._now = longest, now
        self._by_tenant: dict[str, OrderedDict[str, _Stored]] = {}
        self._bytes: dict[str, int] = {}

    @property
    def num_stored(self) -> int:
        """Number of responses that are kept."""
        return sum(map(len, self._by_tenant.values()))

    @property
    def num_bytes(self) -> int:
        """Memory of all together, about; what two of them share counts twice."""
        return sum(self._bytes.values())

    def find(self, tenant: str, response_id: str) -> ResponseHistory:
        """Return a tenant's response; NOT_FOUND for one that is not kept."""
        own = self._by_tenant.get(tenant)
        stored = None if own is None else own.get(response_id)
        if stored is None or self._now() - stored.stored_at > self._longest:
            message = (
                f"there is no response {response_id[:100]!r} here: it was not stored, or its "
                f"conversation takes over {self._most_each} bytes, or it is over "
                f"{self._longest:g} s old, or newer ones took its place, or another gateway has "
                "it; send the whole conversation as input, without previous_response_id"
            )
            raise HeadwayError(Code.NOT_FOUND, message, param="previous_response_id")
        return stored.history

    def keep(self, tenant: str, response_id: str, history: ResponseHistory) -> None:
        """Store a response, unless it is longer than one may be."""
        if history.num_bytes > self._most_each:
            return
        self._drop(tenant, response_id)
        own = self._by_tenant.setdefault(tenant, OrderedDict())
        own[response_id] = _Stored(history, self._now())
        self._bytes[tenant] = self._bytes.get(tenant, 0) + history.num_bytes
        for each in list(self._by_tenant):
            self._drop_old(each)
        while self.num_bytes > self._most_bytes or self.num_stored > MOST_STORED:
            largest = max(self._bytes, key=lambda name: (self._bytes[name], name))
            self._drop(largest, next(iter(self._by_tenant[largest])))

    def _drop_old(self, tenant: str) -> None:
        oldest_at = self._now() - self._longest
        while own := self._by_tenant.get(tenant):
            response_id, oldest = next(iter(own.items()))
            if oldest.stored_at >= oldest_at:
                return
            self._drop(tenant, response_id)

    def _drop(self, tenant: str, response_id: str) -> None:
        own = self._by_tenant.get(tenant)
        dropped = None if own is None else own.pop(response_id, None)
        if dropped is not None:
            self._bytes[tenant] -= dropped.history.num_bytes
            if not own:
                del self._by_tenant[tenant], self._bytes[tenant]
