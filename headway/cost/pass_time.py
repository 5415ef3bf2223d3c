"""The time of a forward pass: a linear model of its contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from headway.errors import invalid, require_between

SLOWEST_UNIT = "slowest-unit"
EACH_TERM = "each-term"
ALL_UNITS = "all-units"
GATES = (SLOWEST_UNIT, EACH_TERM, ALL_UNITS)
MOST_SECONDS = 3600.0


class Share(NamedTuple):
    """A DP unit's part of a pass: tokens, tokens × tokens, requests, tokens.

    ``prefill_context``: the sum over prefills of their tokens in the pass × the tokens before
    them. ``batch`` requests decode over ``kv_tokens`` tokens of KV.
    """

    prefill_tokens: int = 0
    prefill_context: int = 0
    batch: int = 0
    kv_tokens: int = 0


def prefill_context(start: int, num_tokens: int, chunk_tokens: int) -> int:
    """Return what a prompt's next tokens attend to, behind ``start`` others: tokens × tokens.

    Attention within ``chunk_tokens`` is in the time of a token; a longer part attends to more.
    """
    return num_tokens * start + num_tokens * max(0, num_tokens - chunk_tokens) // 2


@dataclass(frozen=True, slots=True)
class PassTime:
    """``t = base + b·prefill_tokens + c·batch + d·kv_tokens + e·prefill_context``, seconds.

    ``per_prefill_token`` is b, ``per_request`` c, ``per_kv_token`` d and ``per_prefill_context``
    e (attention of a chunk over what came before it); each 0 to 3600 s. ``gate``: what units in
    lock-step wait for. ``slowest-unit``: the unit with the longest pass. ``each-term``: the
    greatest of each term, because units meet several times within a pass (expert parallelism).
    ``all-units``: the work of all together, which their devices share (experts of them all).
    """

    base: float
    per_prefill_token: float = 0.0
    per_request: float = 0.0
    per_kv_token: float = 0.0
    per_prefill_context: float = 0.0
    gate: str = SLOWEST_UNIT

    def __post_init__(self) -> None:
        for term in fields(self):
            if term.name != "gate":
                require_between(term.name, getattr(self, term.name), 0.0, MOST_SECONDS)
        if self.gate not in GATES:
            raise invalid("gate", self.gate, f"one of {', '.join(GATES)}")

    def seconds(
        self, prefill_tokens: float, prefill_context: float, batch: float, kv_tokens: float
    ) -> float:
        """Return the time of a pass of one unit, seconds."""
        return (
            self.base
            + self.per_prefill_token * prefill_tokens
            + self.per_prefill_context * prefill_context
            + self.per_request * batch
            + self.per_kv_token * kv_tokens
        )

    def lock_step(self, shares: Sequence[Share]) -> float:
        """Return the time of units in lock-step: the slowest one's, seconds; 0 without a share."""
        if not shares:
            return 0.0
        if self.gate == EACH_TERM:
            return self.seconds(*(max(term) for term in zip(*shares, strict=True)))
        return max(self.seconds(*share) for share in self.awaited(shares))

    def awaited(self, shares: Sequence[Share]) -> Sequence[Share]:
        """Return the shares of which a pass waits for the slowest; one of all units together."""
        if self.gate == ALL_UNITS:
            return [Share(*(sum(term) for term in zip(*shares, strict=True)))]
        return shares
