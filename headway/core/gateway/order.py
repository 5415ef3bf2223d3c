"""Tokens in order, from the workers that the scheduler has named, and from no other.

Early tokens are held back, repeats from another copy are dropped. Two workers may compute one
attempt for a moment, for example when the acknowledgement of a move is lost. Each sends every
token that it draws, so a copy that differs is noticed at its first repeat. The attempt then ends,
and the next one continues from what the client has read.

Tokens and the scheduler's word on who sends them come over different streams. What a worker sends
before it is named waits. A worker that had the request before may only fill a gap in front of
tokens that the present one has sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.gateway.events import Delivery, Pause
from headway.core.gateway.state import Held, OpenRequest, OpenRequests
from headway.life.moments import MomentKind
from headway.messages import StreamFailure, TokenBatch
from headway.request import FinishReason

_ENDS = (FinishReason.STOP, FinishReason.LENGTH)
_MOST_WORKERS = 4096  # whose names are kept


class NamedWorkers:
    """The workers that the scheduler has named, the newest last; others learn nothing."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._names

    def add(self, *worker_ids: str) -> None:
        """Remember these workers."""
        for worker_id in worker_ids:
            self._names.pop(worker_id, None)
            self._names[worker_id] = None
        while len(self._names) > _MOST_WORKERS:
            del self._names[next(iter(self._names))]


@dataclass(slots=True)
class Taken:
    """The outcome of one batch."""

    deliveries: list[Delivery] = field(default_factory=list)
    unknown: dict[int, None] = field(default_factory=dict)
    """Stream ids of no open request."""
    num_first: int = 0
    """Requests that got their first token."""
    ended: list[tuple[OpenRequest, FinishReason]] = field(default_factory=list)
    """Requests that have all of their tokens."""
    broken: dict[str, str] = field(default_factory=dict)
    """Request ids that cannot continue, and why."""
    gaps: list[OpenRequest] = field(default_factory=list)
    """Requests that lack a token which may still be in flight."""
    pauses: list[Pause] = field(default_factory=list)
    """Pauses of requests whose tokens now come from another worker."""
    failures: list[StreamFailure] = field(default_factory=list)
    """Failures that their present workers report."""


def take_tokens(requests: OpenRequests, batch: TokenBatch, now: float) -> Taken:
    """Append a batch's tokens to their requests; remove requests that end."""
    taken = Taken()
    by_stream, worker_id = requests.by_stream, batch.worker_id
    for mark in batch.marks:
        state = by_stream.get(mark.stream_id)
        if state is not None and state.life is not None:
            state.life.told(worker_id, mark)
    for entry, (stream_id, index, token_id, reason) in enumerate(
        zip(batch.stream_ids, batch.indices, batch.token_ids, batch.finish_reasons, strict=True)
    ):
        state = by_stream.get(stream_id)
        if state is None:
            taken.unknown[stream_id] = None
            continue
        logprobs = batch.logprobs.get(entry) if batch.logprobs else None
        before = batch.before.get(entry, ()) if batch.before else ()
        num_cached = batch.num_cached.get(entry, 0) if batch.num_cached else 0
        spent = batch.levels_spent.get(entry, 0) if batch.levels_spent else 0
        request_id = state.request.request_id
        delivery = Delivery(request_id, token_id, logprobs, reason, before, num_cached, spent)
        if worker_id in state.sources:
            _take(taken, requests, state, worker_id, index, delivery, now)
        else:
            requests.hold(state, Held(worker_id, index, delivery))
            _fill_gap(taken, requests, state)
    for failure in batch.failures:
        state = by_stream.get(failure.stream_id)
        if state is not None and worker_id in state.sources:
            taken.failures.append(failure)
        elif state is not None and worker_id not in state.former:
            requests.hold(state, Held(worker_id, -1, failure))
    return taken


def name_sources(
    requests: OpenRequests, state: OpenRequest, sources: tuple[str, ...], now: float
) -> Taken | None:
    """Take tokens from these workers from now on; return what has waited for this, if any has."""
    if sources != state.sources:
        state.former = state.former.union(state.sources).difference(sources)
        state.sources = sources
    if state.source_id not in sources and state.worker_id != sources[0]:
        state.worker_id, state.placed_at, state.orphaned_since = sources[0], now, None
    released = requests.release(state, *sources)
    if not released:
        return None
    taken = Taken()
    for worker_id, index, said in released:
        if state.request_id not in requests:
            break
        if isinstance(said, StreamFailure):
            taken.failures.append(said)
        else:
            _take(taken, requests, state, worker_id, index, said, now)
    return taken


def _take(
    taken: Taken,
    requests: OpenRequests,
    state: OpenRequest,
    worker_id: str,
    index: int,
    delivery: Delivery,
    now: float,
) -> None:
    """Take one entry of a source: the next token, an early one, a repeat or an end."""
    num_known, before = len(state.output), delivery.before
    first = index - len(before)
    if first != num_known and before:
        for at, single in enumerate(delivery.singles(), first):
            if state.request_id in requests:
                _take(taken, requests, state, worker_id, at, single, now)
        return
    if state.request_id in taken.broken:
        return
    if index >= state.request.sampling.max_tokens:
        taken.broken[state.request_id] = f"its worker sent token {index}, which it may not have"
    elif (first != num_known or state.early) and _differs(state, first, delivery):
        taken.broken[state.request_id] = f"two workers computed token {index} differently"
    elif first != num_known:
        _out_of_order(taken, requests, state, index, delivery)
    else:
        _note_source(taken, state, worker_id, now)
        _append(taken, requests, state, delivery)
        _close_gap(taken, requests, state)


def _note_source(taken: Taken, state: OpenRequest, worker_id: str, now: float) -> None:
    state.worker_id = worker_id
    if state.source_id != worker_id:
        if state.source_id:
            taken.pauses.append(state.pause(now))
            if state.life is not None:
                state.life.note(MomentKind.LEFT, state.last_at, state.source_id)
                state.life.note(MomentKind.CONTINUES, now, worker_id)
        else:
            if not state.output:
                state.first_at, state.first_worker_id = now, worker_id
            if state.life is not None:
                state.life.came_first(now, worker_id)
        state.source_id = worker_id
    state.last_at, state.orphaned_since = now, None


def _differs(state: OpenRequest, first: int, delivery: Delivery) -> bool:
    """Return whether a token that is already known, delivered or early, has another value."""
    for index, token_id in enumerate((*delivery.before, delivery.token_id), first):
        if index < len(state.output):
            if state.output[index] != token_id:
                return True
        elif index in state.early and state.early[index].token_id != token_id:
            return True
    return False


def _close_gap(taken: Taken, requests: OpenRequests, state: OpenRequest) -> None:
    """Append the early tokens whose turn has come, unless the request has ended."""
    if not state.early:
        return
    while state.request_id in requests and state.request_id not in taken.broken:
        early = state.early.pop(len(state.output), None)
        if early is None:
            break
        _append(taken, requests, state, early)
    if not state.early:
        state.gap_since = None


def _fill_gap(taken: Taken, requests: OpenRequests, state: OpenRequest) -> None:
    """Append tokens of former workers that come before those of the present one."""
    while state.early and state.request_id in requests and state.request_id not in taken.broken:
        missing = requests.fill_in(state, len(state.output))
        if missing is None or missing.before or missing.finish_reason is not None:
            return
        _append(taken, requests, state, missing)
        _close_gap(taken, requests, state)


def _append(taken: Taken, requests: OpenRequests, state: OpenRequest, delivery: Delivery) -> None:
    reason, token_id = delivery.finish_reason, delivery.token_id
    assert token_id is not None, "only an end alone has no token, and it is not appended"
    if reason is not None:
        if reason not in _ENDS:
            taken.broken[state.request_id] = f"its worker ended it: {reason.value}"
            return
        requests.remove(state)
        taken.ended.append((state, reason))
    if not state.output:
        taken.num_first += 1
        state.num_cached = delivery.num_cached
        if state.life is not None:
            state.life.num_cached = delivery.num_cached
        delivery = delivery._replace(decision=state.decision)
    state.output.extend(delivery.before)
    state.output.append(token_id)
    state.levels_spent = max(state.levels_spent, delivery.levels_spent)
    taken.deliveries.append(delivery)


def _out_of_order(
    taken: Taken, requests: OpenRequests, state: OpenRequest, index: int, token: Delivery
) -> None:
    num_known, reason = len(state.output), token.finish_reason
    if index > num_known:  # its predecessor may come over another worker's stream
        state.early[index] = token
        taken.gaps.append(state)
        _fill_gap(taken, requests, state)
    elif reason is None:
        return  # a repeat
    elif index == num_known - 1 and reason in _ENDS:  # only the end was new
        requests.remove(state)
        taken.ended.append((state, reason))
        taken.deliveries.append(Delivery(state.request_id, None, None, reason))
    else:
        taken.broken[state.request_id] = f"a copy of it ended at token {index} of {num_known}"
