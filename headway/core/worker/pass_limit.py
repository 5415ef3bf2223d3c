"""The prompt tokens of a pass by the time until readers need their next tokens.

A pass computes prompts beside requests that decode, and each of these waits for it to end. So it
takes no more prompt tokens than leave a reader's next token within its class's ``tpot``, or in time
for who has read the tokens in hand, by what passes cost here. A chunk of a number of tokens keeps
that for one model, on one card, and beside one batch alone.
"""

from __future__ import annotations

from math import inf

from headway.core.worker.fair_chunk import running_prompts
from headway.core.worker.fair_turns import FairTurns
from headway.core.worker.lifecycle import Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.unit import WorkerUnit
from headway.cost.kept import LEAST_FOR_PROMPTS, PLANNED_PASS
from headway.request import Phase


def prompt_tokens_within(
    unit: WorkerUnit, turns: FairTurns, reader_pace: float, *, now: float
) -> float:
    """Return how many prompt tokens the unit's part of the next pass has time for, 1 or more.

    ``reader_pace``: seconds in which a reader reads a token. inf where nobody reads on, where not
    even a request alone would have its tokens in time, and where costs are not known yet.
    """
    pass_time = turns.pass_time
    if not pass_time.per_prefill_token:
        return inf
    prompts = [sequence for _, sequence in running_prompts(unit)]
    if not (prompts or unit.waiting.by_name):
        return inf
    limit = min((_due_within(s, reader_pace, now) for s in unit.holding.values()), default=inf)
    if limit == inf or pass_time.seconds(0, 0, 1, 1) >= PLANNED_PASS * limit:
        return inf
    batch = unit.batch
    num_decoding, kv_tokens = (batch.num_requests, batch.kv_tokens) if batch else (0, 0)
    for sequence in unit.apart.values():
        if sequence.stage is Stage.RUNNING and sequence.decoding:
            num_decoding += 1
            kv_tokens += sequence.kv.num_computed
    decoding = pass_time.seconds(0, 0, num_decoding, kv_tokens)
    left = max(PLANNED_PASS * limit - decoding, LEAST_FOR_PROMPTS * decoding)
    known = (max(s.kv.num_computed, s.kv.num_hit_tokens) for s in prompts)
    longest = max((unit.waiting.longest_known, *known))
    per_token = pass_time.per_prefill_token + pass_time.per_prefill_context * longest
    waiting = unit.waiting.by_name.values()
    if any(s.is_scored for s in prompts) or any(each.num_scored for each in waiting):
        per_token += turns.per_score
    return max(1.0, left / per_token)


def _due_within(sequence: Sequence, reader_pace: float, now: float) -> float:
    """Return the seconds within which its reader's next token is due; inf if nobody reads on.

    A class promises them whatever its reader has in hand. Who is late is not due sooner than at the
    pace of reading.
    """
    service = sequence.request.standing.service
    reads_on = sequence.stage is Stage.RUNNING and sequence.phase is Phase.ANSWERING
    if not (reads_on and sequence.is_read) or (service is not None and service.yields):
        return inf
    if service is not None and service.tpot is not None:
        return service.tpot
    return max(reader_pace, sequence.in_hand_until - now)
