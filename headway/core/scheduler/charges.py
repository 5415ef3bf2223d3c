"""What tenants are charged for their requests: expected tokens at first, then those they had.

A request is charged when it is dispatched, and anew when its worker reports its end. One whose end
comes from elsewhere (its client leaves, its text holds a stop string, its worker dies) is charged
for its prompt alone until such a report comes. A prompt is charged once, whatever the number of
attempts at its request, and so is each output token.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from headway.core.scheduler.places import Tracked
from headway.core.token_counters import OUTPUT_WEIGHT, TokenCounters
from headway.request import StreamKey

_MOST_KEPT = 4096
_K = TypeVar("_K")
_V = TypeVar("_V")


class _Payer(NamedTuple):
    """Who pays for an attempt that has ended."""

    tenant: str
    share: float
    request: tuple[str, str]


class Charges:
    """The charges of one model's requests, in its tenants' counters."""

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters
        self._unreported: dict[StreamKey, _Payer] = {}
        """Attempts that have ended, and whose workers have yet to say with how many tokens."""
        self._paid: dict[tuple[str, str], int] = {}
        """Output tokens that earlier attempts at a request were charged for."""

    def charge(self, entry: Tracked, cost: float) -> None:
        """Charge its tenant so many weighted tokens for it, in place of what it was charged."""
        self._counters.charge(entry.tenant, cost - entry.charged, entry.share)
        entry.charged = cost

    def settle(self, entry: Tracked, num_output_tokens: int, *, may_go_on: bool = False) -> None:
        """Charge an attempt for the output that its worker reports with its end.

        ``may_go_on``: its request may be tried again, after the same tokens.
        """
        payer = _payer(entry)
        num_new = self._pay(payer, num_output_tokens, may_go_on=may_go_on)
        self.charge(entry, _prompt(entry) + OUTPUT_WEIGHT * num_new)
        entry.is_settled = True

    def ended(self, entry: Tracked) -> None:
        """Charge an attempt that has ended without its worker's word for its prompt."""
        if entry.is_settled or entry.at is None:
            return
        self.charge(entry, _prompt(entry))
        self._unreported[entry.key] = _payer(entry)
        _keep_newest(self._unreported)

    def reported(self, key: StreamKey, num_output_tokens: int) -> None:
        """Charge such an attempt for its output, once its worker has reported that."""
        payer = self._unreported.pop(key, None)
        if payer is not None:
            num_new = self._pay(payer, num_output_tokens, may_go_on=True)
            self._counters.charge(payer.tenant, OUTPUT_WEIGHT * num_new, payer.share)

    def _pay(self, payer: _Payer, num_output_tokens: int, *, may_go_on: bool) -> int:
        """Return the output tokens that its request has not been charged for."""
        paid = self._paid.pop(payer.request, 0)
        if may_go_on:
            self._paid[payer.request] = max(paid, num_output_tokens)
            _keep_newest(self._paid)
        return max(0, num_output_tokens - paid)


def _payer(entry: Tracked) -> _Payer:
    return _Payer(entry.tenant, entry.share, (entry.key.gateway_id, entry.request_id))


def _prompt(entry: Tracked) -> int:
    """Return the prompt tokens that this attempt is charged for."""
    if entry.request is None or not entry.charged:
        return 0
    return len(entry.request.prompt_token_ids)


def _keep_newest(kept: dict[_K, _V]) -> None:
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
