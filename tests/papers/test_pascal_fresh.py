"""PASCAL, Algorithm 2: a_i counts answers within their first quantum, whatever its size."""

from __future__ import annotations

import pytest

from headway.core.worker.events import LeaderConnected
from headway.messages import EndForward, WantedReports
from headway.policies.batching import Batching
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.pascal import Pascal, PascalParams
from headway.policies.batching.rr import RoundRobinBatching, RoundRobinParams
from tests.fakes.worker_core import dispatch, make_request, make_worker


def fresh_counts(batching: Batching) -> list[int]:
    """Return a_i after each pass of one answer of ten tokens."""
    worker = make_worker(batching=batching, report_interval=0.0)
    worker.post(LeaderConnected(WantedReports(phases=True)))
    worker.post(dispatch(make_request(1, prompt=4, max_tokens=10)))
    worker.run_all()
    ends = [action for action in worker.log if isinstance(action, EndForward)]
    return [end.loads[0].num_fresh_answering for end in ends if end.pass_time]


@pytest.mark.parametrize(
    "batching", [Pascal(PascalParams(quantum=4)), RoundRobinBatching(RoundRobinParams(quantum=4))]
)
def test_an_answer_is_fresh_for_one_quantum(batching: Batching) -> None:
    assert fresh_counts(batching)[:9] == [1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_without_quanta_an_answer_is_fresh_for_the_papers_500_tokens() -> None:
    assert fresh_counts(Fcfs())[:9] == [1] * 9
