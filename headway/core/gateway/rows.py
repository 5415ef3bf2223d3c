"""Rows of live requests for people: the most pressing ones, found without reading all each time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import NamedTuple

from headway.core.gateway.state import OpenRequest, OpenRequests, StreamStage
from headway.errors import invalid, require_between

MOST_ROWS = 200
_MOST_READ = 500  # requests looked at in one call, besides those of the call before


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A wish for rows: a sort, filters ("" for any), and a number of rows.

    HeadwayError for an unknown sort and for a number out of range.
    """

    sort: str = "slack"
    service_class: str = ""
    tenant: str = ""
    worker: str = ""
    phase: str = ""
    session: str = ""
    num_rows: int = 50

    def __post_init__(self) -> None:
        if self.sort not in _SORTS:
            raise invalid("sort", self.sort, f"one of {', '.join(_SORTS)}")
        if self.phase and self.phase not in PHASES:
            raise invalid("phase", self.phase, f"one of {', '.join(PHASES)}")
        require_between("rows", self.num_rows, 1, MOST_ROWS)


class RequestRow(NamedTuple):
    """One live request at one instant; seconds, tokens."""

    request_id: str
    attempt: int
    service_class: str
    tenant: str
    worker_id: str
    target_id: str
    """The worker that it moves to, "" for none."""
    phase: str
    num_prompt_tokens: int
    num_output_tokens: int
    expected_tokens: float
    """Output tokens that its gateway expects, 0 if unknown."""
    age: float
    waited: float
    """From its arrival to its first token, or until now."""
    slack: float
    """Until its next promise breaks, below 0 for late; infinite without a promise."""
    session_id: str = ""


QUEUED, PREFILL, DECODE, MOVING, RETRYING = "queued", "prefill", "decode", "moving", "retrying"
PHASES = (QUEUED, PREFILL, DECODE, MOVING, RETRYING)


def phase_of(state: OpenRequest) -> str:
    """Return where a request is, as far as its gateway knows."""
    if state.stage in (StreamStage.RETRYING, StreamStage.SUSPECTED):
        return RETRYING
    if len(state.sources) > 1:
        return MOVING
    if not state.worker_id:
        return QUEUED
    return DECODE if state.output else PREFILL


def slack_of(state: OpenRequest, now: float) -> float:
    """Return the seconds until the next promise to a request breaks; infinite without one.

    Before its first token that is the TTFT of its class, then its next token at the class's TPOT,
    else its deadline.
    """
    request, service = state.request, state.request.standing.service
    due_at = request.deadline_at
    if service is not None:
        if not state.output and service.ttft is not None:
            due_at = min(due_at, request.arrival_at + service.ttft)
        elif state.output and service.tpot is not None:
            due_at = min(due_at, state.first_at + service.tpot * len(state.output))
    return due_at - now


def _waited(state: OpenRequest, now: float) -> float:
    return (state.first_at if state.output else now) - state.request.arrival_at


_SORTS: Mapping[str, Callable[[OpenRequest, float], float]] = {
    "slack": slack_of,
    "wait": lambda state, now: -_waited(state, now),
    "age": lambda state, now: state.request.arrival_at,
    "output": lambda state, now: -len(state.output),
}
SORTS = tuple(_SORTS)


class FoundRows(NamedTuple):
    """The rows, first the most pressing; ``num_read`` of ``num_open`` requests were looked at."""

    rows: list[RequestRow]
    num_read: int
    num_open: int


class RowSearch:
    """A search that goes on from call to call.

    Each call looks at the best of the call before and at the next five hundred requests: its cost
    is bounded. With fewer requests than that it sees all of them each time.
    """

    def __init__(self, query: RowQuery) -> None:
        self.query = query
        self._best: list[str] = []
        self._place = 0

    def look(self, requests: OpenRequests, now: float) -> FoundRows:
        """Return the first rows by the query's sort, as far as they are known."""
        place = self._place if self._place < len(requests) else 0
        read = {s.request_id: s for s in islice(iter(requests), place, place + _MOST_READ)}
        self._place = place + _MOST_READ
        for request_id in self._best:
            state = requests.find(request_id)
            if state is not None:
                read[request_id] = state
        key = _SORTS[self.query.sort]
        ranked = ((key(s, now), s.request_id) for s in self._matching(read.values()))
        best = heapq.nsmallest(self.query.num_rows, ranked)
        self._best = [request_id for _, request_id in best]
        rows = [_row(read[request_id], now) for request_id in self._best]
        return FoundRows(rows, len(read), len(requests))

    def _matching(self, states: Iterable[OpenRequest]) -> Iterable[OpenRequest]:
        query = self.query
        for state in states:
            standing = state.request.standing
            service = standing.service.name if standing.service is not None else ""
            if (
                query.service_class in ("", service)
                and query.tenant in ("", standing.tenant)
                and (query.worker in ("", state.worker_id) or query.worker in state.sources)
                and query.phase in ("", phase_of(state))
                and query.session in ("", state.request.session_id)
            ):
                yield state


def _row(state: OpenRequest, now: float) -> RequestRow:
    request, standing = state.request, state.request.standing
    targets = [each for each in state.sources if each != state.worker_id]
    slack = slack_of(state, now)
    return RequestRow(
        request.request_id,
        request.attempt,
        standing.service.name if standing.service is not None else "",
        standing.tenant,
        state.worker_id,
        targets[0] if targets and len(state.sources) > 1 else "",
        phase_of(state),
        len(request.prompt_token_ids),
        len(state.output),
        request.predicted_output_tokens,
        now - request.arrival_at,
        _waited(state, now),
        slack if slack < inf else inf,
        request.session_id,
    )
