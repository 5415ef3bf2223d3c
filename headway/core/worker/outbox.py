"""Tokens on their way to gateways: one batch per gateway and event, in parallel arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.core.worker.events import SendTokens
from headway.errors import Code
from headway.forward_pass import Sampled
from headway.life.moments import Mark
from headway.messages import StreamFailure, TokenBatch
from headway.request import FinishReason, Request, TokenLogprobs

_MOST_MARKS = 4096
"""Marks that wait for one gateway's next tokens."""


@dataclass(slots=True)
class _Pending:
    address: str
    stream_ids: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: list[FinishReason | None] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    failures: list[StreamFailure] = field(default_factory=list)
    before: dict[int, Sequence[int]] = field(default_factory=dict)
    num_cached: dict[int, int] = field(default_factory=dict)
    levels_spent: dict[int, int] = field(default_factory=dict)


class TokenOutbox:
    """A collection of one event's tokens, by gateway; marks wait for the next tokens."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._pending: dict[str, _Pending] = {}
        self._marks: dict[str, list[Mark]] = {}

    def add(
        self,
        request: Request,
        index: int,
        sampled: Sampled,
        reason: FinishReason | None,
        num_cached: int = 0,
        levels_spent: int = 0,
    ) -> None:
        """Add a token, with those of the steps before it; ``index`` is its own position.

        ``num_cached``: cached tokens of its prompt, reported with its first token.
        ``levels_spent``: levels whose credit it has spent (MemGuard).
        """
        pending = self._for(request)
        if levels_spent:
            pending.levels_spent[len(pending.token_ids)] = levels_spent
        if num_cached and index == len(sampled.before):
            pending.num_cached[len(pending.token_ids)] = num_cached
        if sampled.before:
            pending.before[len(pending.token_ids)] = sampled.before
        if sampled.logprobs is not None:
            pending.logprobs[len(pending.token_ids)] = sampled.logprobs
        pending.stream_ids.append(request.stream_id)
        pending.indices.append(index)
        pending.token_ids.append(sampled.token_id)
        pending.finish_reasons.append(reason)

    def fail(self, request: Request, message: str, code: Code = Code.INTERNAL) -> None:
        """Add the end of a request that has no token."""
        failure = StreamFailure(request.stream_id, FinishReason.ERROR, message, code)
        self._for(request).failures.append(failure)

    def mark(self, request: Request, mark: Mark) -> None:
        """Add what has happened to a request; beyond the bound it is left out."""
        marks = self._marks.setdefault(request.gateway_id, [])
        if len(marks) < _MOST_MARKS:
            marks.append(mark)

    def forget(self, gateway_id: str) -> None:
        """Drop the marks for a gateway that is gone."""
        self._marks.pop(gateway_id, None)

    def flush(self) -> list[SendTokens]:
        """Return and clear the collected tokens."""
        if not self._pending:
            return []
        sends = [
            SendTokens(
                gateway_id,
                p.address,
                TokenBatch(
                    self._worker_id,
                    p.stream_ids,
                    p.indices,
                    p.token_ids,
                    p.finish_reasons,
                    p.logprobs,
                    p.failures,
                    p.before,
                    p.num_cached,
                    p.levels_spent,
                    self._marks.pop(gateway_id, ()),
                ),
            )
            for gateway_id, p in self._pending.items()
        ]
        self._pending.clear()
        return sends

    def _for(self, request: Request) -> _Pending:
        pending = self._pending.get(request.gateway_id)
        if pending is None:
            pending = self._pending[request.gateway_id] = _Pending(request.gateway_address)
        return pending
