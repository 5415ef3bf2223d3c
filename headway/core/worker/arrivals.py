"""Requests arriving from another worker: blocks are reserved and filled, then the request runs."""

from __future__ import annotations

from headway.blocks import blocks_for
from headway.cluster import Role
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    KvContinued,
    RefuseKv,
    WorkerAction,
)
from headway.core.worker.lifecycle import Event, Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.state import WorkerState
from headway.errors import Code, HeadwayError
from headway.messages import KvHeader
from headway.request import FinishReason, Request, StreamKey


def answer_offer(state: WorkerState, header: KvHeader) -> WorkerAction:
    """Reserve blocks for an offered request, or refuse with the reason."""
    request, unit = header.request, header.unit
    present = state.find(request.key)
    if present is not None and present.stage is not Stage.ARRIVING:
        return AcknowledgeKv(request.key)
    if present is not None:
        message = "this request's KV is arriving already: try again when that has ended"
        return _refuse(request.key, Code.UNAVAILABLE, message)
    if header.fencing_token < state.fencing_token:  # the newer leader does not know of this move
        message = (
            f"the leader that ordered this handoff has fencing token {header.fencing_token}; one "
            f"with {state.fencing_token} has come since: wait for its order"
        )
        return _refuse(request.key, Code.FAILED_PRECONDITION, message)
    problem = _layout_problem(state, header.layout) or state.problem(request, unit)
    problem = problem or _header_problem(header)
    if problem is not None:
        return _refuse(request.key, Code.INVALID_ARGUMENT, problem)
    return _reserve(state, request, unit, header.num_computed_tokens)


def _layout_problem(state: WorkerState, layout: str) -> str | None:
    """Return why KV of that layout would be read wrongly here, or None."""
    own = state.info.kv_layout
    if layout == own != "":
        return None
    takes = f"this worker takes {own!r}" if own else "this worker takes no KV"
    return f"the KV's layout is {layout!r}; {takes}: compute the request again from its tokens"


def _header_problem(header: KvHeader) -> str | None:
    if not 0 < header.num_computed_tokens < header.request.num_tokens:
        return (
            f"num_computed_tokens is {header.num_computed_tokens}; it must be over 0 and "
            f"below the request's {header.request.num_tokens} tokens"
        )
    return None


def _reserve(
    state: WorkerState, request: Request, unit: int, num_computed_tokens: int
) -> WorkerAction:
    """Take blocks; if none are free the KV may wait in host memory, or come a little later."""
    place = state.units[unit]
    pool, host = place.pool, place.host
    # In a decode pool the prompt is not work; in a unified pool it is done already.
    num_cached = 0 if state.info.role is Role.UNIFIED else len(request.prompt_token_ids)
    sequence = state.sequence(request, unit, Stage.ARRIVING, num_cached)
    kv = sequence.kv
    kv.num_computed = num_computed_tokens
    needed, num_free = (
        blocks_for(request.num_tokens, pool.block_size),
        place.num_free(sequence.tenant),
    )
    has_room = needed <= num_free and pool.grow(kv.blocks, request.num_tokens)
    if not (has_room or host.grow(kv.host_blocks, num_computed_tokens)):
        place.want(sequence)
        message = (
            f"unit {unit} has {num_free} free KV blocks, the request needs {needed}: "
            "try another unit"
        )
        return _refuse(request.key, Code.RESOURCE_EXHAUSTED, message)
    place.add(sequence)
    return _accept(state, sequence)


def answer_more(state: WorkerState, event: KvContinued) -> WorkerAction:
    """Reserve blocks for the growth of an arriving request, or refuse with the reason."""
    sequence = state.find(event.key)
    if sequence is None or sequence.stage is not Stage.ARRIVING:
        message = "this request is not arriving here any more"
        return _refuse(event.key, Code.FAILED_PRECONDITION, message)
    kv, unit = sequence.kv, state.units[sequence.unit]
    num_tokens = sequence.num_tokens + len(event.output_token_ids)
    if not kv.num_computed <= event.num_computed_tokens < num_tokens < state.max_len:
        message = (
            f"num_computed_tokens is {event.num_computed_tokens} of {num_tokens}; it must be at "
            f"least {kv.num_computed} and below that, and that below {state.max_len}"
        )
        return _refuse(event.key, Code.INVALID_ARGUMENT, message)
    if kv.host_blocks:
        has_room = unit.host.grow(kv.host_blocks, event.num_computed_tokens)
    else:
        has_room = unit.pool.grow(kv.blocks, num_tokens)
    if not has_room:
        message = f"unit {unit.unit} has no room for the request's further tokens"
        return _refuse(event.key, Code.RESOURCE_EXHAUSTED, message)
    state.extend(sequence, event.output_token_ids)
    kv.num_computed = event.num_computed_tokens
    return _accept(state, sequence)


def end_arrival(state: WorkerState, key: StreamKey, *, ok: bool) -> None:
    """Run a request whose KV has arrived (``ok``), or forget one whose KV will not come.

    Report either to a scheduler that knows the request as arriving.
    """
    sequence = state.find(key)
    if sequence is None or sequence.stage is not Stage.ARRIVING:
        return
    unit, was_told = state.units[sequence.unit], sequence.is_told
    if not (ok or was_told):
        unit.remove(sequence)
        state.news.has_freed_blocks = True
    elif not ok or sequence.ended is not None:
        sequence.end(FinishReason.CANCELLED)
        state.forget(sequence)
    else:
        unit.move(sequence, Event.RUNS_ON if sequence.kv.blocks else Event.WAITS_ON)
        sequence.is_told = False
        if was_told:
            state.news.prefilled.append(sequence.held())


def _accept(state: WorkerState, sequence: Sequence) -> AcceptKv:
    kv = sequence.kv
    filled = blocks_for(kv.num_computed, state.info.block_size)
    return AcceptKv(sequence.key, tuple(kv.blocks[:filled]), tuple(kv.host_blocks))


def _refuse(key: StreamKey, code: Code, message: str) -> RefuseKv:
    return RefuseKv(key, HeadwayError(code, message))
