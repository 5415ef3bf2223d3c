"""A turn to a prefiller is as long as its costs ask, and an idle one waits for no interval."""

from __future__ import annotations

import random
from types import MappingProxyType

import pytest

from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Costs
from tests.fakes.scheduler_text import SchedulerHarness, make_info

BASE, SLOPE, CHUNK = 0.01, 1e-3, 400


def make(**params: float) -> SchedulerHarness:
    """Two prefillers, of which "a" computes the first request."""
    costs = Costs(first_pass=0.1, prefill_base=BASE, prefill_slope=SLOPE)
    scheduler = SchedulerHarness(
        SchedulerSettings(dispatch="sbs", dispatch_params=MappingProxyType(params), costs=costs)
    )
    scheduler.submit(1, 10)
    for worker_id in ("a", "b"):
        scheduler.connect(make_info(worker_id, chunk=CHUNK, blocks=1000))
    return scheduler


@pytest.mark.parametrize("conserves", [False, True])
def test_an_idle_prefiller_takes_what_waits_at_once(conserves: bool) -> None:
    scheduler = make(conserves=conserves)
    assert scheduler.dispatched("a") == [1]
    scheduler.submit(2, 10)  # a lone request goes at once in any case
    scheduler.submit(3, 10)
    scheduler.submit(4, 10)
    scheduler.end_forward("b")
    assert scheduler.dispatched("b") == ([2, 3, 4] if conserves else [2])


@pytest.mark.parametrize("seed", range(5))
def test_a_turn_ends_with_the_prompt_that_makes_it_long_enough(seed: int) -> None:
    rng = random.Random(seed)
    scheduler, most = make(base_share=0.1), 9 * BASE / SLOPE
    lengths = {n: rng.randrange(5, 60) for n in range(2, 40)}
    for number, length in lengths.items():
        scheduler.submit(number, length)
    for _ in range(40):
        for worker_id in ("a", "b"):
            scheduler.end_forward(worker_id)
            scheduler.wait(0.2)
    sent = [
        [request.num_tokens for batch in dispatch.batches for request in batch.requests]
        for worker_id in ("a", "b")
        for dispatch in scheduler.dispatches(worker_id)
    ]
    assert sum(map(len, sent)) == len(lengths) + 1
    assert all(sum(turn) - min(turn) < most for turn in sent)
    assert max(map(sum, sent)) >= most
