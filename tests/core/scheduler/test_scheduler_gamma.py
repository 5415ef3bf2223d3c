"""γ-Ada at the scheduler: fitted to end-to-end latencies, handed to every worker of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.scheduler.events import WorkerReported
from headway.core.settings import policy_settings
from headway.errors import HeadwayError
from headway.messages import EndForward, FinishedRequest, Tuned
from headway.policies.batching.uniboost import UniBoostParams
from headway.presets import PRESETS
from headway.request import FinishReason
from tests.fakes.scheduler_text import SchedulerHarness, key, make_info, short_pass

FIT = UniBoostParams(gamma=0.05)


def make_scheduler(fit: UniBoostParams | None = FIT) -> SchedulerHarness:
    scheduler = SchedulerHarness(
        replace(short_pass(), gamma_fit=fit, dispatch="immediate", dispatch_params={})
    )
    scheduler.connect(make_info("p", role=Role.PREFILL))
    scheduler.connect(make_info("d", role=Role.UNIFIED, chunk=1 << 20))
    return scheduler


def finish(scheduler: SchedulerHarness, streams: range, *, apart: float = 0.1) -> None:
    for stream_id in streams:
        scheduler.submit(stream_id)
    for stream_id in streams:
        at = "d" if stream_id in scheduler.dispatched("d") else "p"
        scheduler.end_forward(at, finished=(stream_id,), after=apart)


def told(scheduler: SchedulerHarness, worker_id: str) -> list[float]:
    return [order.gamma for order in scheduler.orders(worker_id, Tuned)]


def test_every_worker_of_the_model_is_told_one_gamma_whoever_finished() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("other", model="n"))
    finish(scheduler, range(1, 201))
    assert told(scheduler, "p")
    assert told(scheduler, "p") == told(scheduler, "d")
    assert not told(scheduler, "other")
    assert told(scheduler, "p")[-1] != FIT.gamma


def test_fewer_completions_than_a_fit_needs_tell_nothing() -> None:
    scheduler = make_scheduler()
    finish(scheduler, range(1, 100))
    assert not told(scheduler, "d")


def test_a_worker_that_comes_later_is_told_at_once() -> None:
    scheduler = make_scheduler()
    finish(scheduler, range(1, 201))
    scheduler.connect(make_info("late"))
    assert told(scheduler, "late") == told(scheduler, "d")[-1:]


def test_nothing_is_fitted_for_a_policy_without_gamma() -> None:
    scheduler = make_scheduler(None)
    finish(scheduler, range(1, 201))
    assert not told(scheduler, "d")


@pytest.mark.parametrize(("name", "fits"), [("uniboost", True), ("headway", False), ("sbs", False)])
def test_a_preset_says_whether_gamma_is_fitted(name: str, fits: bool) -> None:
    assert (policy_settings(PRESETS[name]).scheduler.gamma_fit is not None) is fits


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan"), float("inf")])
def test_a_gamma_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(HeadwayError, match="gamma"):
        Tuned(gamma)


def test_what_is_fitted_is_the_wait_without_the_passes_that_served_a_request() -> None:
    first = []
    for share in (0.0, 0.5):
        scheduler = make_scheduler()
        for number in range(1, 151):
            scheduler.submit(number)
        for number in range(1, 151):
            served = share * (scheduler.now + 0.1 - number / 1000)
            ended = FinishedRequest(key(number), 0, 10, 5, FinishReason.STOP, served)
            report = EndForward(1, 0.01, (), (), finished=(ended,))
            at = "d" if number in scheduler.dispatched("d") else "p"
            scheduler.post(WorkerReported(at, report), after=0.1)
        first.append(told(scheduler, "d")[0])
    assert first[1] > 1.9 * first[0]
