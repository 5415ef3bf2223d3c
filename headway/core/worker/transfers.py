"""KV on its way between workers: what the source keeps, and what the target reserves."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headway.blocks import blocks_for
from headway.cluster import Role
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    KvAborted,
    KvArrived,
    KvContinued,
    KvOffered,
    KvSent,
    RefuseKv,
    StartTransfer,
    StopTransfer,
    TransferEnded,
    TransferEvent,
    WorkerAction,
)
from headway.core.worker.rounds import begins_round, end_rounds, send_round, start_transfer
from headway.core.worker.sequence import SequenceState, Stage
from headway.core.worker.state import WorkerState
from headway.errors import Code, HeadwayError
from headway.forward_pass import Swap
from headway.messages import Handoff, HandoffResult, KvHeader
from headway.request import FinishReason, Request, StreamKey


def on_transfer(state: WorkerState, event: TransferEvent, most_rounds: int) -> list[WorkerAction]:
    """What KV that leaves or arrives makes of the requests; ``most_rounds`` while one runs."""
    match event:
        case Handoff():
            action = start_handoff(state, event, most_rounds)
            return [] if action is None else [action]
        case TransferEnded():
            return [end_transfer(state, event)]
        case KvSent(key):
            return end_round(state, key, most_rounds)
        case KvOffered(header):
            return [answer_offer(state, header)]
        case KvContinued():
            return [answer_more(state, event)]
        case KvArrived(key):
            end_arrival(state, key, ok=True)
        case KvAborted(key):
            end_arrival(state, key, ok=False)
    return []


# --- the source -----------------------------------------------------------------------


def start_handoff(
    state: WorkerState, handoff: Handoff, most_rounds: int = 0
) -> WorkerAction | None:
    """Stream the request's KV to its target; None if that is under way, or begins later.

    A request that decodes is moved, too: full blocks go first, and then it leaves at the end of
    the pass that it is in.
    """
    sequence = state.find(handoff.key)
    is_elsewhere = handoff.target_worker_id != state.info.worker_id
    if sequence is None or sequence.is_over or not (_can_leave(sequence) and is_elsewhere):
        return _not_held(handoff)
    if sequence.moving or sequence.leaving is not None or sequence.num_rounds:
        return None
    if sequence.stage is not Stage.HANDOFF:
        sequence.leaving = handoff
        return _go_on_leaving(state, sequence, most_rounds)
    sequence.moving = True
    return start_transfer(sequence, handoff, sequence.num_computed)


def _go_on_leaving(
    state: WorkerState, sequence: SequenceState, most_rounds: int
) -> WorkerAction | None:
    """Another round, or the rest now, or None: the rest when it is in no pass."""
    unit = state.units[sequence.unit]
    if begins_round(sequence, unit.pool.block_size, most_rounds):
        return send_round(unit, sequence)
    return None if sequence.num_passes or sequence.swapping else leave(state, sequence)


def end_round(state: WorkerState, key: StreamKey, most_rounds: int) -> list[WorkerAction]:
    """A round has been sent; a request that lost its KV, or is over, goes nowhere."""
    sequence = state.find(key)
    if sequence is None or not sequence.sending:
        return []
    state.units[sequence.unit].pool.release(sequence.sending)
    if sequence.leaving is None:
        return []
    is_over = sequence.cancelled and not sequence.num_passes
    if is_over or not _can_leave(sequence) or sequence.num_computed < sequence.num_sent:
        return [stay(sequence)]
    action = _go_on_leaving(state, sequence, most_rounds)
    return [] if action is None else [action]


def _can_leave(sequence: SequenceState) -> bool:
    """Its prefill is done: it waits for a handoff, decodes, or has its KV in host memory."""
    return sequence.stage is Stage.HANDOFF or (
        sequence.stage in (Stage.RUNNING, Stage.WAITING) and sequence.decoding
    )


def leave(state: WorkerState, sequence: SequenceState) -> StartTransfer:
    """Stop a running request and send the rest of its KV; it goes on here if that fails."""
    assert sequence.leaving is not None, "it has been told where to go"
    state.units[sequence.unit].move(sequence, Stage.HANDOFF)
    sequence.moving = True
    return start_transfer(sequence, sequence.leaving, sequence.num_computed)


def leave_all(state: WorkerState, sequences: Iterable[SequenceState]) -> list[WorkerAction]:
    """Those who were told to and are in no pass, but for those of whom a round is being sent."""
    leaving = [s for s in sequences if s.leaving is not None and not (s.num_passes or s.sending)]
    return [leave(state, s) for s in leaving]


def stay(sequence: SequenceState) -> HandoffResult | StopTransfer:
    """It ended, or lost its blocks, before it could leave."""
    assert sequence.leaving is not None, "it has been told where to go"
    handoff, sequence.leaving = sequence.leaving, None
    return StopTransfer(sequence.key) if sequence.num_rounds else _not_held(handoff)


def _not_held(handoff: Handoff) -> HandoffResult:
    return HandoffResult(
        handoff.key,
        handoff.target_worker_id,
        handoff.target_unit,
        ok=False,
        retriable=False,
        message="this worker does not hold the request for a handoff",
    )


def end_swaps(
    state: WorkerState, swapped_out: Iterable[Swap], failed: Collection[StreamKey] = ()
) -> list[WorkerAction]:
    """A pass has brought KV to host memory, all but that of the ``failed``: who leaves, does."""
    actions: list[WorkerAction] = []
    for swap in swapped_out:
        sequence = state.find(swap.key)
        if sequence is None or not sequence.swapping:
            continue
        sequence.swapping = False
        if swap.key in failed:
            state.units[sequence.unit].lose(sequence)
        if sequence.leaving is not None and not sequence.sending:
            held = bool(sequence.host_blocks)
            actions.append(leave(state, sequence) if held else stay(sequence))
    return actions


def end_returns(
    state: WorkerState, swapped_in: Iterable[Swap], failed: Collection[StreamKey] = ()
) -> list[WorkerAction]:
    """KV has come back beside a pass, all but that of the ``failed``: who leaves, does."""
    actions: list[WorkerAction] = []
    for swap in swapped_in:
        sequence = state.find(swap.key)
        if sequence is None or not sequence.returning:
            continue
        sequence.returning = False
        sequence.num_passes -= 1
        if sequence.is_over:
            state.finish(sequence, FinishReason.CANCELLED)
        elif swap.key in failed:
            state.units[sequence.unit].miss(sequence)
        if sequence.leaving is not None and (sequence.is_over or not sequence.blocks):
            actions.append(stay(sequence))
        else:
            actions += leave_all(state, [sequence])
    return actions


def end_transfer(state: WorkerState, event: TransferEnded) -> HandoffResult:
    """The target has the request, or the source goes on holding it."""
    sequence = state.find(event.key)
    retriable = sequence is not None and not sequence.cancelled
    if sequence is not None:
        sequence.moving = False
        end_rounds(state.units[sequence.unit], sequence)
        if event.ok:
            state.units[sequence.unit].remove(sequence)
            state.has_freed_blocks = True
        elif sequence.cancelled and not sequence.num_passes:
            state.end(sequence, FinishReason.CANCELLED)
        elif sequence.leaving is not None or not sequence.hands_off:
            sequence.leaving = None
            stage = Stage.RUNNING if sequence.blocks else Stage.WAITING
            state.units[sequence.unit].move(sequence, stage)
    return HandoffResult(
        event.key,
        event.target_worker_id,
        event.target_unit,
        ok=event.ok,
        retriable=retriable,
        message=event.message,
    )


# --- the target -----------------------------------------------------------------------


def answer_offer(state: WorkerState, header: KvHeader) -> WorkerAction:
    """Reserve blocks for an offered request, or say why not."""
    request, unit = header.request, header.unit
    present = state.find(request.key)
    if present is not None and present.stage is not Stage.ARRIVING:
        return AcknowledgeKv(request.key)
    if present is not None:
        message = "this request's KV is arriving already: try again when that has ended"
        return RefuseKv(request.key, HeadwayError(Code.UNAVAILABLE, message))
    if header.fencing_token < state.fencing_token:  # the newer leader does not know of this move
        message = (
            f"the leader that ordered this handoff has fencing token {header.fencing_token}; one "
            f"with {state.fencing_token} has come since: wait for its order"
        )
        return RefuseKv(request.key, HeadwayError(Code.FAILED_PRECONDITION, message))
    problem = state.problem(request, unit) or _header_problem(header)
    if problem is not None:
        return RefuseKv(request.key, HeadwayError(Code.INVALID_ARGUMENT, problem))
    return _reserve(state, request, unit, header.num_computed_tokens)


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
    pool = state.units[unit].pool
    # In a decode pool a prompt is no work; a unified one has done it, here or elsewhere.
    num_cached = 0 if state.info.role is Role.UNIFIED else len(request.prompt_token_ids)
    sequence = state.sequence(request, unit, Stage.ARRIVING, num_cached)
    sequence.num_computed = num_computed_tokens
    if not pool.grow(sequence.blocks, request.num_tokens) and not _fits_host(state, sequence):
        needed = blocks_for(request.num_tokens, pool.block_size)
        message = (
            f"unit {unit} has {pool.num_free} free KV blocks, the request needs {needed}: "
            "try another unit"
        )
        return RefuseKv(request.key, HeadwayError(Code.RESOURCE_EXHAUSTED, message))
    state.units[unit].add(sequence)
    return _accept(state, sequence)


def _accept(state: WorkerState, sequence: SequenceState) -> AcceptKv:
    filled = blocks_for(sequence.num_computed, state.info.block_size)
    return AcceptKv(sequence.key, tuple(sequence.blocks[:filled]), tuple(sequence.host_blocks))


def _fits_host(state: WorkerState, sequence: SequenceState) -> bool:
    """Whether KV that finds no blocks can wait in host memory; its place is taken."""
    host = state.units[sequence.unit].host
    return host.grow(sequence.host_blocks, sequence.num_computed)


def answer_more(state: WorkerState, event: KvContinued) -> WorkerAction:
    """Reserve blocks for what an arriving request has grown by, or say why not."""
    sequence = state.find(event.key)
    if sequence is None or sequence.stage is not Stage.ARRIVING:
        message = "this request is not arriving here any more"
        return RefuseKv(event.key, HeadwayError(Code.FAILED_PRECONDITION, message))
    num_tokens = sequence.num_tokens + len(event.output_token_ids)
    if not sequence.num_computed <= event.num_computed_tokens < num_tokens < state.max_len:
        message = (
            f"num_computed_tokens is {event.num_computed_tokens} of {num_tokens}; it must be at "
            f"least {sequence.num_computed} and below that, and that below {state.max_len}"
        )
        return RefuseKv(event.key, HeadwayError(Code.INVALID_ARGUMENT, message))
    unit = state.units[sequence.unit]
    if sequence.host_blocks:
        has_room = unit.host.grow(sequence.host_blocks, event.num_computed_tokens)
    else:
        has_room = unit.pool.grow(sequence.blocks, num_tokens)
    if not has_room:
        message = f"unit {unit.unit} has no room for what the request has grown by"
        return RefuseKv(event.key, HeadwayError(Code.RESOURCE_EXHAUSTED, message))
    state.extend(sequence, event.output_token_ids)
    sequence.num_computed = event.num_computed_tokens
    return _accept(state, sequence)


def end_arrival(state: WorkerState, key: StreamKey, *, ok: bool) -> None:
    """All of an accepted offer's KV is here (``ok``), or will not come."""
    sequence = state.find(key)
    if sequence is None or sequence.stage is not Stage.ARRIVING:
        return
    is_listed = key in state.listed_as_arriving
    state.listed_as_arriving.discard(key)
    if not ok and is_listed:
        state.end(sequence, FinishReason.CANCELLED)
        return
    if not ok:
        state.units[sequence.unit].remove(sequence)
        state.has_freed_blocks = True
        return
    stage = Stage.RUNNING if sequence.blocks else Stage.WAITING
    state.units[sequence.unit].move(sequence, stage)
    if sequence.cancelled:
        state.end(sequence, FinishReason.CANCELLED)
    elif is_listed:
        state.prefilled.append(sequence.held())
