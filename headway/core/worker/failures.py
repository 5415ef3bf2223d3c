"""What becomes of the requests of a forward pass that failed."""

from __future__ import annotations

from headway.core.worker.ahead import Flight
from headway.core.worker.events import PassFailed, WorkerAction
from headway.core.worker.state import WorkerState
from headway.core.worker.transfers import end_returns, end_swaps, leave_all, stay
from headway.request import FinishReason


def end_failed_pass(state: WorkerState, flight: Flight, event: PassFailed) -> list[WorkerAction]:
    """Those to blame end, all of them where nobody is named; the others are planned again."""
    forward_pass, actions = flight.forward_pass, list[WorkerAction]()
    swapped = {swap.key for swap in (*forward_pass.swapped_out, *forward_pass.swapped_in)}
    in_pass = flight.land(state, event.pass_id)
    # A failure that blames nobody may have come before the swaps: computing again is sure.
    failed = event.keys or tuple(swapped)
    actions += end_swaps(state, forward_pass.swapped_out, failed)
    actions += end_returns(state, forward_pass.swapped_in, failed)
    blamed = set(event.keys) & ({item.key for item, _ in in_pass} | swapped)
    for item, sequence in in_pass:
        if sequence.is_over:
            state.finish(sequence, FinishReason.CANCELLED)
        elif item.start != sequence.num_computed:
            continue  # what this pass took for granted has failed: it is not to blame
        elif not blamed or item.key in blamed:
            state.fail_here(sequence, event.message)
        if not sequence.is_over:
            actions += leave_all(state, [sequence])
        elif sequence.leaving is not None:
            actions.append(stay(sequence))
    return actions
