"""Tokens in order: early ones are held back, repeats from another copy are dropped.

Two workers may compute one attempt for a moment, for example when the acknowledgement of a move is
lost. Each sends every token that it draws, so a copy that differs is noticed at its first repeat.
The attempt then ends, and the next one continues from what the client has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.core.gateway.events import Delivery, Pause
from headway.core.gateway.state import OpenRequest, OpenRequests
from headway.messages import TokenBatch
from headway.request import FinishReason

_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(slots=True)
class Taken:
    """The outcome of one batch."""

    deliveries: list[Delivery] = field(default_factory=list)
    unknown: dict[int, None] = field(default_factory=dict)
    """Stream ids of no open request."""
    num_first: int = 0
    """Requests that got their first token."""
    broken: dict[str, str] = field(default_factory=dict)
    """Request ids that cannot continue, and why."""
    gaps: list[OpenRequest] = field(default_factory=list)
    """Requests that lack a token which may still be in flight."""
    pauses: list[Pause] = field(default_factory=list)
    """Pauses of requests whose tokens now come from another worker."""


def take_tokens(requests: OpenRequests, batch: TokenBatch, now: float) -> Taken:
    """Append a batch's tokens to their requests; remove requests that end."""
    taken = Taken()
    by_stream, worker_id = requests.by_stream, batch.worker_id
    for entry, (stream_id, index, token_id, reason) in enumerate(
        zip(batch.stream_ids, batch.indices, batch.token_ids, batch.finish_reasons, strict=True)
    ):
        state = by_stream.get(stream_id)
        if state is None:
            taken.unknown[stream_id] = None
            continue
        logprobs = batch.logprobs.get(entry) if batch.logprobs else None
        before = batch.before.get(entry, ()) if batch.before else ()
        first = index - len(before)
        if (first != len(state.output) or state.early) and (
            state.request_id in taken.broken or _differs(state, first, (*before, token_id))
        ):
            taken.broken[state.request_id] = f"two workers computed token {index} differently"
            continue
        num_cached = batch.num_cached.get(entry, 0) if batch.num_cached else 0
        request_id = state.request.request_id
        delivery = Delivery(request_id, token_id, logprobs, reason, before, num_cached)
        if first != len(state.output):
            _out_of_order(taken, requests, state, index, delivery)
            continue
        state.worker_id = worker_id
        if state.source_id != worker_id:
            if state.source_id:
                taken.pauses.append(state.pause(now))
            elif not state.output:
                state.first_at = now
            state.source_id = worker_id
        state.last_at = now
        _append(taken, requests, state, delivery)
        if state.early:
            _close_gap(taken, requests, state)
    return taken


def _differs(state: OpenRequest, first: int, token_ids: Sequence[int]) -> bool:
    """Return whether a token that is already known, delivered or early, has another value."""
    for index, token_id in enumerate(token_ids, first):
        if index < len(state.output):
            if state.output[index] != token_id:
                return True
        elif index in state.early and state.early[index].token_id != token_id:
            return True
    return False


def _close_gap(taken: Taken, requests: OpenRequests, state: OpenRequest) -> None:
    """Append the early tokens whose turn has come."""
    while (early := state.early.pop(len(state.output), None)) is not None:
        _append(taken, requests, state, early)
        if early.finish_reason is not None:
            return
    if not state.early:
        state.gap_since = None


def _append(taken: Taken, requests: OpenRequests, state: OpenRequest, delivery: Delivery) -> None:
    reason, token_id = delivery.finish_reason, delivery.token_id
    assert token_id is not None, "only an end alone has no token, and it is not appended"
    if reason is not None:
        if reason not in _ENDS:
            taken.broken[state.request_id] = f"its worker ended it: {reason.value}"
            return
        requests.remove(state)
    if not state.output:
        taken.num_first += 1
    state.output.extend(delivery.before)
    state.output.append(token_id)
    taken.deliveries.append(delivery)


def _out_of_order(
    taken: Taken, requests: OpenRequests, state: OpenRequest, index: int, token: Delivery
) -> None:
    num_known, reason = len(state.output), token.finish_reason
    if index > num_known:  # its predecessor may come over another worker's stream
        state.early[index] = token._replace(before=())
        taken.gaps.append(state)
    elif reason is None:
        return  # a repeat
    elif index == num_known - 1 and reason in _ENDS:  # only the end was new
        requests.remove(state)
        taken.deliveries.append(Delivery(state.request_id, None, None, reason))
    else:
        taken.broken[state.request_id] = f"a copy of it ended at token {index} of {num_known}"
