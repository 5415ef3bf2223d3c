"""The scheduler's core: which requests are taken, and what repeats and cancels do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Adapter, Role, WorkerInfo
from headway.core.scheduler.events import GatewayConnected, GatewayDisconnected, Note
from headway.errors import Code, HeadwayError
from headway.messages import CancelStream, HeldRequest, Rejected
from headway.request import StreamKey
from tests.fakes.scheduler_text import SchedulerHarness, key, make_info, make_request, short_pass


def make_scheduler(**fields: object) -> SchedulerHarness:
    return SchedulerHarness(replace(short_pass(), **fields))  # type: ignore[arg-type]  # fields by name


# --- admission ----------------------------------------------------------------------------


def refusal(scheduler: SchedulerHarness) -> Rejected:
    assert len(scheduler.rejected()) == 1
    return scheduler.rejected()[0]


def test_a_model_that_no_worker_serves_yet_is_unavailable() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", model="m"))
    scheduler.submit(1, model="x")
    refused = refusal(scheduler)
    assert (refused.code, refused.retry_after) == (Code.UNAVAILABLE, 5.0)
    assert refused.message == "no worker serves model 'x' yet; those that joined serve: m"
    scheduler.connect(make_info("late", model="x"))
    scheduler.submit(2, model="x")
    assert scheduler.dispatched("late") == [2]


def with_adapters(worker_id: str, *names: str) -> WorkerInfo:
    adapters = tuple(Adapter(name, "1") for name in names)
    return replace(make_info(worker_id, Role.UNIFIED), adapters=adapters)


def test_an_adapter_that_no_worker_has_yet_is_unavailable() -> None:
    scheduler = make_scheduler()
    scheduler.connect(with_adapters("a", "sql"))
    scheduler.connect(with_adapters("b", "poems", "sql"))
    scheduler.post(replace(make_request(1), adapter="php"))
    refused = refusal(scheduler)
    assert (refused.code, refused.retry_after) == (Code.UNAVAILABLE, 5.0)
    told = "no worker of 'm' has adapter 'php' yet; those that joined have: poems, sql"
    assert refused.message == told


def test_requests_go_to_workers_that_have_their_adapter() -> None:
    scheduler = make_scheduler()
    for worker_id, names in (("a", ()), ("b", ("sql",)), ("c", ())):
        scheduler.connect(with_adapters(worker_id, *names))
    for stream_id in (1, 2, 3):
        scheduler.post(replace(make_request(stream_id), adapter="sql"))
        scheduler.wait(1.0)
        assert scheduler.dispatched("b") == list(range(1, stream_id + 1))
        scheduler.serve("b")
    assert not scheduler.dispatches("a")
    assert not scheduler.dispatches("c")


def test_a_request_over_the_context_is_refused_with_value_and_limit() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("u", Role.UNIFIED, max_len=100, blocks=50))
    scheduler.submit(1, 90, max_tokens=11)
    assert refusal(scheduler).code is Code.INVALID_ARGUMENT
    assert "together 101; the limit is 100" in refusal(scheduler).message


def test_a_request_over_every_pool_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", blocks=10))
    scheduler.connect(make_info("d", Role.DECODE, blocks=100))
    scheduler.submit(1, 100)
    assert refusal(scheduler).code is Code.INVALID_ARGUMENT
    assert "largest prefill instance holds 100" in refusal(scheduler).message


def test_a_request_goes_to_the_worker_that_could_hold_it() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("u1", Role.UNIFIED, max_len=50))
    scheduler.connect(make_info("u2", Role.UNIFIED, max_len=500))
    scheduler.submit(1, 90)
    assert scheduler.dispatched("u2") == [1]


def test_the_hint_follows_the_measured_velocity() -> None:
    scheduler = make_scheduler(max_waiting=1)
    scheduler.connect(make_info("p", chunk=100, blocks=1000))
    scheduler.submit(1, 500)
    scheduler.submit(2, 1000)
    scheduler.serve("p", queued=400, pass_time=0.5)  # 100 tokens in 0.5 s
    scheduler.submit(3)
    assert scheduler.rejected()[-1].retry_after == pytest.approx(1000 / 200)


@pytest.mark.parametrize(("pass_id", "seconds"), [(1, 0.1), (9, 2.0)])
def test_the_hint_counts_passes_that_went_unreported_and_no_time_without_prompts(
    pass_id: int, seconds: float
) -> None:
    scheduler = make_scheduler(max_waiting=1)
    scheduler.connect(make_info("p", chunk=100, blocks=1000))
    scheduler.wait(60.0)
    scheduler.submit(1, 100)
    scheduler.serve("p", pass_id=pass_id, after=2.0)  # 100 tokens; the last pass took 0.1 s
    scheduler.wait(60.0)
    scheduler.submit(2, 100)
    scheduler.submit(3, 1000)
    scheduler.submit(4)
    assert scheduler.rejected()[-1].retry_after == pytest.approx(seconds * 1000 / 100)


def test_a_later_attempt_is_never_refused_for_want_of_room() -> None:
    scheduler = make_scheduler(max_waiting=1)
    scheduler.submit(1)
    scheduler.submit(2, attempt=1)
    assert scheduler.rejected() == []


def test_later_attempts_have_a_bound_of_their_own() -> None:
    scheduler = make_scheduler(max_waiting=1)
    for stream_id in range(1, 4098):  # who ran when workers died may come again
        scheduler.submit(stream_id, attempt=1)
    assert refusal(scheduler).key == key(4097)
    assert refusal(scheduler).code is Code.RESOURCE_EXHAUSTED


def test_a_deadline_that_has_passed_is_refused_at_once() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, deadline_at=scheduler.now - 0.5)
    assert refusal(scheduler).code is Code.DEADLINE_EXCEEDED


# --- repeats, cancels, gateways -----------------------------------------------------------


def test_a_repeated_submission_is_ignored_while_it_waits_and_while_it_runs() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1)
    scheduler.submit(1)
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.serve("p")
    assert scheduler.dispatched("p") == [1]


def test_ended_requests_are_remembered_in_bounds() -> None:
    scheduler = make_scheduler(num_keys_remembered=2)
    scheduler.connect(make_info("p"))
    for stream_id in (1, 2, 3):
        scheduler.submit(stream_id)
        scheduler.serve("p", finished=(stream_id,))
    scheduler.submit(1)
    assert scheduler.dispatched("p") == [1, 2, 3, 1]


def test_a_refused_request_is_refused_again() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1, model="x")
    scheduler.submit(1, model="x")
    assert [r.code for r in scheduler.rejected()] == [Code.UNAVAILABLE] * 2


def test_a_new_attempt_replaces_the_older_one() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1, request_id="r")
    scheduler.submit(2, request_id="r", attempt=1)
    assert scheduler.cancelled("p") == [1]
    scheduler.submit(3, request_id="r", attempt=2)
    scheduler.serve("p", finished=(1,))
    assert scheduler.dispatched("p") == [1, 3]


def test_an_older_attempt_that_comes_late_is_not_run() -> None:
    scheduler = make_scheduler()
    scheduler.submit(2, request_id="r", attempt=1)
    scheduler.submit(1, request_id="r", attempt=0)
    scheduler.connect(make_info("p"))
    assert scheduler.dispatched("p") == [2]


def test_a_cancel_that_comes_before_its_request_is_kept() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.post(CancelStream(key(1)))
    scheduler.submit(1)
    assert scheduler.dispatched("p") == []


def test_requests_of_a_gateway_that_stays_away_are_cancelled() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.submit(2)
    scheduler.post(GatewayDisconnected("g"))
    scheduler.wait(4.9)
    assert scheduler.cancelled("p") == []
    scheduler.wait(0.2)
    assert 1 in scheduler.cancelled("p")


def test_models_that_workers_name_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.core.scheduler.admission.MOST_MODELS", 1)
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", model="m"))
    with pytest.raises(HeadwayError, match="the number of models is 2; it must be at most 1"):
        scheduler.connect(make_info("q", model="n"))
    scheduler.submit(1)
    assert scheduler.dispatched("p") == [1]


def test_gateways_that_a_worker_makes_up_are_given_up_together() -> None:
    scheduler = make_scheduler()
    held = [HeldRequest(StreamKey(f"made-up-{n}", n), f"r{n}", 0, 10, False) for n in (1, 2, 3)]
    scheduler.connect(make_info("p"), *held)
    scheduler.wait(5.1)
    assert sorted(scheduler.cancelled("p")) == [1, 2, 3]
    notes = [each for each in scheduler.log if isinstance(each, Note)]
    assert [each.detail for each in notes] == ["made-up-1 and 2 more"]


def test_more_requests_than_a_worker_can_hold_are_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.core.scheduler.instance.MOST_HELD", 2)
    scheduler = make_scheduler()
    held = [HeldRequest(key(n), f"r{n}", 0, 10, False) for n in (1, 2, 3, 4)]
    scheduler.connect(make_info("p"), *held)
    assert scheduler.cancelled("p") == [3, 4]


def test_requests_of_a_gateway_that_comes_back_in_time_go_on() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.post(GatewayDisconnected("g"))
    scheduler.post(GatewayConnected("g"), after=3.0)
    scheduler.wait(10.0)
    assert scheduler.cancelled("p") == []
