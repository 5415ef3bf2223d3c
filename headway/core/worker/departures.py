"""Requests going to another worker: full blocks while they run, the remainder once they stop.

Each round sends what was computed during the one before it, so the final pause is short.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headway.core.worker.events import StartTransfer, StopTransfer, TransferEnded, WorkerAction
from headway.core.worker.lifecycle import Event, Stage
from headway.core.worker.sequence import Departure, Sequence
from headway.core.worker.state import WorkerState
from headway.messages import Handoff, HandoffResult
from headway.request import FinishReason, StreamKey

_DECODE = (Stage.RUNNING, Stage.WAITING, Stage.SWAPPING_IN, Stage.SWAPPING_OUT)


def start_handoff(state: WorkerState, handoff: Handoff, most_rounds: int) -> list[WorkerAction]:
    """Send a request's KV to its target; do nothing if that is in progress or starts later.

    A decoding request may move, too: it leaves at the end of the pass that it is in.
    """
    sequence = state.find(handoff.key)
    if sequence is None or handoff.target_worker_id == state.info.worker_id:
        return [_not_held(handoff)]
    if handoff.target_address == state.info.address:
        message = "its target has gone: this worker has its address now"
        return [replace(_not_held(handoff), retriable=True, message=message)]
    if sequence.ended is not None:
        return [_not_held(handoff)]
    if not _may_leave(sequence):
        was_ready = sequence.hands_off and sequence.num_preemptions > 0  # others needed its blocks
        return [replace(_not_held(handoff), retriable=was_ready)]
    if sequence.departure is not None:
        sequence.departure.repeat(handoff)
        return []
    is_prefilled = sequence.stage is Stage.PREFILLED
    sequence.departure = Departure(handoff, is_prefilled)
    return [leave(state, sequence)] if is_prefilled else _go_on(state, sequence, most_rounds)


def _may_leave(sequence: Sequence) -> bool:
    """Return whether its prefill is done: it awaits a handoff, decodes, or is already leaving.

    A cached prompt's last token is a decoding one, too; where it hands off it only ends a prefill.
    """
    if sequence.stage is Stage.PREFILLED or sequence.stage is Stage.LEAVING:
        return True
    return sequence.stage in _DECODE and sequence.decoding and not sequence.hands_off


def _go_on(state: WorkerState, sequence: Sequence, most_rounds: int) -> list[WorkerAction]:
    """Send another round, or the remainder; nothing while a pass still computes the remainder."""
    departure, kv = sequence.departure, sequence.kv
    assert departure is not None, "it has a target"
    pool = state.units[sequence.unit].pool
    size = pool.block_size
    num_unsent = kv.num_computed - departure.num_sent
    is_early = departure.num_rounds < most_rounds and num_unsent >= size
    is_there = sequence.stage is Stage.RUNNING and not kv.is_returning
    if is_early and is_there:  # full blocks do not change any more
        first, stop = departure.num_sent // size, kv.num_computed // size
        departure.sending = pool.share(kv.blocks[first:stop])
        part = _transfer(sequence, departure, stop * size, more=True)
        departure.num_sent = stop * size
        departure.num_rounds += 1
        return [part]
    is_free = not sequence.num_passes and sequence.stage is not Stage.SWAPPING_OUT
    return [leave(state, sequence)] if is_free else []


def end_round(state: WorkerState, key: StreamKey, most_rounds: int) -> list[WorkerAction]:
    """Continue after a round; stop if the request has ended or lost its KV."""
    sequence = state.find(key)
    departure = None if sequence is None else sequence.departure
    if sequence is None or departure is None or not departure.sending:
        return []
    state.units[sequence.unit].pool.release(departure.sending)
    if departure.is_stopping:
        return []
    if sequence.ended is not None:  # the end of its pass stops the transfer
        return [] if sequence.num_passes else call_off(sequence)
    if not _may_leave(sequence) or sequence.kv.num_computed < departure.num_sent:
        return call_off(sequence)
    return _go_on(state, sequence, most_rounds)


def leave(state: WorkerState, sequence: Sequence) -> StartTransfer:
    """Stop a request and send the remainder of its KV; if that fails it continues here."""
    assert sequence.departure is not None, "it has a target"
    state.units[sequence.unit].move(sequence, Event.DEPARTS)
    return _transfer(sequence, sequence.departure, sequence.kv.num_computed)


def leave_all(state: WorkerState, sequences: Iterable[Sequence]) -> list[WorkerAction]:
    """Send requests that are to leave, are in no pass, and have no round in progress."""
    actions: list[WorkerAction] = []
    for sequence in sequences:
        departure = sequence.departure
        if departure is None or departure.is_stopping:
            continue
        if not (departure.sending or sequence.num_passes):
            actions.append(leave(state, sequence))
    return actions


def call_off(sequence: Sequence) -> list[WorkerAction]:
    """Cancel the move, if any, of a request that ended or lost its KV before it could leave."""
    departure = sequence.departure
    if departure is None or departure.is_stopping:
        return []
    if departure.num_rounds:
        departure.is_stopping = True
        return [StopTransfer(sequence.key)]
    sequence.departure = None
    return [_not_held(departure.handoff)]


def cancel(state: WorkerState, key: StreamKey, target_worker_id: str) -> list[WorkerAction]:
    """End the transfer of a request to a target that is gone; do nothing if it has ended."""
    sequence = state.find(key)
    departure = None if sequence is None else sequence.departure
    if sequence is None or departure is None or departure.is_stopping:
        return []
    if departure.handoff.target_worker_id != target_worker_id:
        return []
    if sequence.stage is not Stage.LEAVING:
        return call_off(sequence)
    departure.is_stopping = True
    return [StopTransfer(key)]


def end_transfer(state: WorkerState, event: TransferEnded) -> HandoffResult:
    """Forget a request that its target has; keep one that it has not.

    A target that had it before says so in the first round: a pass may compute it here.
    """
    sequence = state.find(event.key)
    retriable = sequence is not None and sequence.ended is not FinishReason.CANCELLED
    fencing_token = 0
    if sequence is not None:
        if sequence.departure is not None:
            departure = sequence.departure
            fencing_token = departure.began_under if event.ok else departure.handoff.fencing_token
        if event.ok:
            state.rates.sent(event.num_bytes, event.seconds)
            state.costs.sent()
            state.news.has_freed_blocks = True
            if sequence.num_passes:
                _end_move(state, sequence)
                state.finish(sequence, FinishReason.CANCELLED)
            else:
                state.units[sequence.unit].remove(sequence)
        else:
            _keep(state, sequence)
    return HandoffResult(
        event.key,
        event.target_worker_id,
        event.target_unit,
        ok=event.ok,
        retriable=retriable,
        message=event.message,
        fencing_token=fencing_token,
    )


def _keep(state: WorkerState, sequence: Sequence) -> None:
    """Keep running a request whose transfer has failed."""
    unit, departure = state.units[sequence.unit], sequence.departure
    if departure is None:
        return
    _end_move(state, sequence)
    unit.changed[sequence.key] = None
    if sequence.ended is not None:
        if not sequence.num_passes:
            state.forget(sequence)
    elif sequence.stage is Stage.LEAVING:
        if departure.is_prefilled and sequence.hands_off:
            unit.move(sequence, Event.HOLDS_ON)
        else:
            unit.move(sequence, Event.RUNS_ON if sequence.kv.blocks else Event.WAITS_ON)


def _end_move(state: WorkerState, sequence: Sequence) -> None:
    if sequence.departure is not None:
        state.units[sequence.unit].pool.release(sequence.departure.sending)
        sequence.departure = None


def _transfer(
    sequence: Sequence, departure: Departure, num_computed_tokens: int, *, more: bool = False
) -> StartTransfer:
    """Return the order for the sender; tokens before ``num_sent`` have been sent already."""
    if not departure.num_sent:
        departure.began_under = departure.handoff.fencing_token
    return StartTransfer(
        request=replace(
            sequence.request,
            output_token_ids=tuple(sequence.output),
            predicted_output_tokens=sequence.length.total or 0.0,
            is_predicted=sequence.length.prediction is not None,
            levels_spent=sequence.levels_spent,
            served=sequence.served,
        ),
        num_computed_tokens=num_computed_tokens,
        blocks=tuple(sequence.kv.blocks),
        handoff=departure.handoff,
        host_blocks=tuple(sequence.kv.host_blocks),
        first_token=departure.num_sent,
        more=more,
    )


def _not_held(handoff: Handoff) -> HandoffResult:
    return HandoffResult(
        handoff.key,
        handoff.target_worker_id,
        handoff.target_unit,
        ok=False,
        retriable=False,
        message="this worker does not hold the request for a handoff",
        fencing_token=handoff.fencing_token,
    )
