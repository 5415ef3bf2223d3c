"""What a worker's passes were made of, as it reports it."""

from __future__ import annotations

from headway.cluster import Role
from headway.core.worker.events import LeaderConnected
from headway.messages import EndForward, PassWork, WantedReports
from tests.fakes.paged import WorkerHarness
from tests.fakes.worker_core import dispatch, make_request, make_worker


def worked(worker: WorkerHarness) -> list[PassWork]:
    return [w for a in worker.log if isinstance(a, EndForward) for w in a.work]


def test_passes_are_told_of_where_that_is_wanted() -> None:
    for wanted in (False, True):
        worker = make_worker(Role.PREFILL)
        worker.post(LeaderConnected(WantedReports(work=wanted)))
        worker.post(dispatch(make_request(1, prompt=6)))
        worker.run_pass()
        assert len(worked(worker)) == wanted


def test_a_prompt_counts_by_its_tokens_and_what_came_before_them() -> None:
    worker = make_worker(Role.PREFILL, chunk=8)
    worker.post(LeaderConnected(WantedReports(work=True)))
    worker.post(dispatch(make_request(1, prompt=14)))
    worker.run_pass()
    worker.run_pass()
    sums = PassWork()
    for each in worked(worker):
        sums = sums.plus(each)
    assert (sums.num_passes, sums.prefill_tokens, sums.prefill_context) == (2, 14, 6 * 8)
    assert (sums.batch, sums.kv_tokens) == (0, 0)
    assert sums.seconds > 0


def test_passes_that_only_decode_are_told_apart() -> None:
    worker = make_worker(Role.UNIFIED)
    worker.post(LeaderConnected(WantedReports(work=True)))
    worker.post(dispatch(make_request(1, prompt=6, max_tokens=3)))
    worker.run_all()
    prefill = [w for w in worked(worker) if w.prefill_tokens]
    decode = [w for w in worked(worker) if not w.prefill_tokens]
    assert sum(w.prefill_tokens for w in prefill) == 6
    assert sum(w.batch for w in decode) == 2
    assert sum(w.kv_tokens for w in decode) == 7 + 8
