"""Which hidden states a worker asks for, and what it believes of the answers."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from headway.cluster import Role
from headway.core.scheduler.admission import wanted_reports
from headway.core.settings import policy_settings
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import AskPredictor, LeaderConnected, Predicted, PredictorKnown
from headway.cost.costs import Costs
from headway.forward_pass import ForwardPass
from headway.messages import CancelStream, Handoff, LoadReport, WantedReports
from headway.policies.batching.sarathi import Sarathi
from headway.policies.batching.trail import Trail
from headway.policies.estimation.countdown import Countdown, CountdownParams
from headway.presets import PRESETS
from headway.request import StreamKey
from tests.fakes.paged import WorkerHarness, transfer
from tests.fakes.policies import A100
from tests.fakes.worker_core import dispatch, make_request, make_worker, reports

KEY = StreamKey("g", 1)


def asked(worker: WorkerHarness) -> list[tuple[int, ...]]:
    return [a.num_output_tokens for a in worker.log if isinstance(a, AskPredictor)]


def asking_worker(role: Role = Role.UNIFIED) -> WorkerHarness:
    worker = make_worker(role, predict_every=5)
    worker.post(LeaderConnected(WantedReports(load_interval=0.0, lengths=True)))
    worker.post(PredictorKnown(True))
    return worker


def reporting_worker(num_passes: int) -> WorkerHarness:
    """Estimates as a live worker does, and reports after every pass; so many have been."""
    harness = make_worker()
    info = harness.core.info
    settings = WorkerSettings(report_interval=0.0, predict_every=5)
    core = WorkerCore(info, [0], Sarathi(), settings, estimation=Countdown(CountdownParams(5)))
    worker = WorkerHarness(core, info.block_size)
    worker.post(LeaderConnected(WantedReports(load_interval=0.0, lengths=True)))
    worker.post(PredictorKnown(True))
    worker.post(dispatch(make_request(1, max_tokens=40)))
    for _ in range(num_passes):
        worker.run_pass()
    return worker


def remaining(worker: WorkerHarness) -> float:
    """As the last report has it."""
    worker.run_pass()
    reports = [a for a in worker.log if isinstance(a, LoadReport)]
    return reports[-1].units[0].remaining[0]


def test_every_fifth_token_is_asked_for_and_the_first_pass_that_decodes() -> None:
    worker = asking_worker()
    worker.post(dispatch(make_request(1, max_tokens=18)))
    worker.run_all()
    assert asked(worker) == [(1,), (6,), (11,), (16,)]


def test_a_state_is_of_the_token_before_the_one_drawn_from_it() -> None:
    worker = asking_worker()
    worker.post(dispatch(make_request(1, prompt=6, max_tokens=4)))
    worker.run_all()
    (ask,) = [a for a in worker.log if isinstance(a, AskPredictor)]
    assert ask.hidden.keys == (KEY,)
    assert ask.hidden.values.tolist() == [[6.0]]  # six prompt tokens, then the first drawn
    assert ask.num_output_tokens == (1,)
    assert ask.num_prompt_tokens == (6,)


def test_requests_have_turns_of_their_own() -> None:
    worker = asking_worker()
    worker.post(dispatch(make_request(1, max_tokens=9)))
    worker.run_pass()
    worker.run_pass()
    worker.post(dispatch(make_request(2, max_tokens=9), dispatch_id=2))
    worker.run_all()
    assert asked(worker) == [(1,), (1,), (6,), (6,)]


@pytest.mark.parametrize("role", [Role.UNIFIED, Role.DECODE])
def test_nothing_is_asked_for_without_a_predictor(role: Role) -> None:
    worker = make_worker(role, predict_every=5)
    worker.post(dispatch(make_request(1, max_tokens=9)))
    worker.run_pass()
    worker.post(PredictorKnown(True))
    worker.post(PredictorKnown(False))
    worker.run_all()
    assert asked(worker) == []
    assert all(a.hidden == () for a in worker.log if isinstance(a, ForwardPass))


def test_nothing_is_asked_for_where_nobody_reads_lengths() -> None:
    worker = make_worker(predict_every=5)
    worker.post(PredictorKnown(True))
    for wants in (WantedReports(), WantedReports(load_interval=0.0)):
        worker.post(LeaderConnected(wants))
        worker.post(dispatch(make_request(1, max_tokens=9)))
        worker.run_all()
    assert asked(worker) == []


def test_where_reports_alone_show_lengths_one_pass_before_each_asks_for_all_of_them() -> None:
    worker = make_worker(predict_every=5)
    worker.post(LeaderConnected(WantedReports(load_interval=0.01, lengths=True)))
    worker.post(PredictorKnown(True))
    worker.post(dispatch(make_request(1, max_tokens=60), make_request(2, max_tokens=60)))
    asked_at, reported_at = [], []
    for _ in range(30):
        before = len(worker.log)
        worker.run_pass()  # a millisecond
        asked_at += [worker.now for a in worker.log[before:] if isinstance(a, AskPredictor)]
        reported_at += [worker.now for a in worker.log[before:] if isinstance(a, LoadReport)]
    assert len(asked_at) == len(reported_at) == 3
    assert all(0.0 < shown - at < 0.004 for at, shown in zip(asked_at, reported_at, strict=True))
    assert [len(tokens) for tokens in asked(worker)] == [2, 2, 2]


def test_an_order_changes_what_is_reported_and_what_is_predicted_for_it() -> None:
    worker = make_worker(predict_every=5)
    worker.post(LeaderConnected(WantedReports()))
    worker.post(PredictorKnown(True))
    worker.post(dispatch(make_request(1, max_tokens=60)))
    for wants, is_read in (
        (WantedReports(load_interval=0.0, lengths=True), True),
        (WantedReports(), False),
    ):
        worker.post(wants)
        begins = len(worker.log)
        for _ in range(7):
            worker.run_pass()
        found = {type(action) for action in worker.log[begins:]}
        assert (AskPredictor in found, LoadReport in found) == (is_read, is_read)


def test_a_batching_policy_that_ranks_by_lengths_has_them_predicted() -> None:
    info = make_worker().core.info
    worker = WorkerHarness(
        WorkerCore(info, [0], Trail(), WorkerSettings(predict_every=5)), info.block_size
    )
    worker.post(PredictorKnown(True))
    worker.post(dispatch(make_request(1, max_tokens=9)))
    worker.run_all()
    assert asked(worker) == [(1,), (6,)]


@pytest.mark.parametrize("name", PRESETS)
def test_only_presets_that_read_lengths_have_them_predicted(name: str) -> None:
    settings = policy_settings(PRESETS[name], Costs(profile=A100))
    is_read = wanted_reports(settings.scheduler).lengths or (settings.make_batching().reads_lengths)
    assert is_read is (name in ("star", "headway"))


def test_zero_turns_it_off() -> None:
    worker = make_worker()
    worker.post(PredictorKnown(True))
    worker.post(dispatch(make_request(1, max_tokens=9)))
    worker.run_all()
    assert asked(worker) == []


def test_a_request_that_ends_with_the_pass_is_not_asked_about() -> None:
    worker = asking_worker()
    worker.post(dispatch(make_request(1, max_tokens=2), make_request(2, max_tokens=3)))
    worker.run_all()
    keys = [a.hidden.keys for a in worker.log if isinstance(a, AskPredictor)]
    assert keys == [(StreamKey("g", 2),)]


def test_a_prediction_counts_down_and_is_reported() -> None:
    worker = reporting_worker(2)
    assert asked(worker) == [(1,)]
    worker.post(Predicted((KEY,), (1,), (30.0,)))
    assert remaining(worker) == 28.0  # of 31 in all, three are there


def test_an_answer_that_comes_late_counts_from_where_it_was_asked() -> None:
    worker = reporting_worker(4)
    worker.post(Predicted((KEY,), (1,), (30.0,)))
    assert remaining(worker) == 26.0


@pytest.mark.parametrize("nonsense", [nan, -1.0, inf])
def test_what_is_no_length_is_not_believed(nonsense: float) -> None:
    worker = reporting_worker(2)
    worker.post(Predicted((KEY,), (1,), (30.0,)))
    worker.post(Predicted((KEY,), (2,), (nonsense,)))
    assert remaining(worker) == 28.0


def test_an_older_answer_does_not_replace_a_newer_one() -> None:
    worker = reporting_worker(4)
    worker.post(Predicted((KEY,), (3,), (20.0,)))
    worker.post(Predicted((KEY,), (1,), (99.0,)))
    assert remaining(worker) == 18.0


def test_a_prediction_is_weighed_against_the_earlier_ones() -> None:
    worker = reporting_worker(4)
    worker.post(Predicted((KEY,), (1,), (30.0,), weight=0.25))  # 31 in all: the first counts alone
    worker.post(Predicted((KEY,), (3,), (20.0,), weight=0.25))  # 23 in all
    assert remaining(worker) == 29.0 - 5  # a quarter of the way from 31 to 23


def test_an_answer_for_a_request_that_has_gone_is_ignored() -> None:
    worker = asking_worker()
    worker.post(dispatch(make_request(1, max_tokens=9)))
    worker.run_pass()
    worker.post(CancelStream(KEY))
    worker.run_all()
    assert worker.post(Predicted((KEY,), (1,), (30.0,))) == []


def test_a_prediction_moves_with_its_request() -> None:
    source, target = asking_worker(), asking_worker(Role.DECODE)
    source.post(dispatch(make_request(1, max_tokens=40)))
    source.run_pass()
    source.run_pass()
    source.post(Predicted((KEY,), (1,), (30.0,)))
    source.post(Handoff(KEY, "w2", "w2:1", 0, 1))
    source.run_pass()
    assert transfer(source, target)
    target.run_pass()
    (moved,) = [s for u in target.core.units for s in u.sequences.values()]
    length = moved.length
    assert length.total == 31.0
    assert length.prediction is not None
    assert length.predicted_at + length.prediction == 31.0  # later ones are weighed against it
    assert asked(target)[0] == (len(moved.output) - 1,)


def test_a_prefill_worker_tells_the_length_that_it_expects() -> None:
    worker = make_worker(Role.PREFILL)
    worker.post(dispatch(replace(make_request(1, max_tokens=40), predicted_output_tokens=30.0)))
    worker.post(dispatch(make_request(2, max_tokens=40), dispatch_id=2))
    worker.run_all()
    held = {h.key.stream_id: h for report in reports(worker) for h in report.prefilled}
    assert (held[1].predicted_remaining, held[2].predicted_remaining) == (29.0, 0.0)
