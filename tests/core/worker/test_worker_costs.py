"""A worker measures what its passes and swaps cost, and its policy decides by that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.costs import CostMeter
from headway.core.worker.events import LeaderConnected, WorkerAction
from headway.core.worker.rates import MemoryRates
from headway.cost.costs import Costs, Source
from headway.cost.pass_time import PassTime, Share
from headway.cost.profile import load_profile
from headway.forward_pass import ForwardPass, PassResult, Sampled
from headway.messages import EndForward, MeasuredCosts, Snapshot, UsedConstant, WantedReports
from headway.policies.batching.headway import Headway, HeadwayParams
from headway.policies.batching.uniboost_memguard import UniBoostMemGuard
from tests.fakes.worker_core import dispatch, make_request

TRUE = PassTime(0.01, 2e-4, 1e-3, 1e-5)
A100 = load_profile("llama-8b-a100")
INFO = WorkerInfo("w", "w:1", Role.UNIFIED, "m", 1, 64, 4, 512, 1000, 8)


def serve(core: WorkerCore, true: PassTime, num_requests: int = 40) -> Iterator[WorkerAction]:
    """Run requests on a device with such pass times; yield the worker's reports."""
    now = 0.0
    actions = list(core.handle(LeaderConnected(WantedReports()), now=now))
    for stream_id in range(1, num_requests + 1):
        num_prompt, num_output = 5 + 7 * (stream_id % 9), 3 + stream_id % 17
        request = make_request(stream_id, num_prompt, max_tokens=num_output)
        actions += core.handle(dispatch(request, dispatch_id=stream_id), now=now)
        for _ in range(5):
            flying = next((a for a in reversed(actions) if isinstance(a, ForwardPass)), None)
            yield from (a for a in actions if not isinstance(a, ForwardPass))
            actions = []
            if flying is None:
                break
            seconds = true.seconds(*_share(flying))
            now += seconds
            sampled = tuple(Sampled(item.key, 5) for item in flying.items if item.sample)
            result = PassResult(flying.pass_id, seconds, sampled)
            actions = list(core.handle(result, now=now))
    yield from actions


def _share(forward_pass: ForwardPass) -> Share:
    parts = [0, 0, 0, 0]
    for item in forward_pass.items:
        if len(item.token_ids) == 1 and item.sample:
            parts[2] += 1
            parts[3] += item.start + 1
        else:
            parts[0] += len(item.token_ids)
            parts[1] += len(item.token_ids) * item.start
    return Share(*parts)


def reported(actions: Iterator[WorkerAction]) -> list[MeasuredCosts]:
    return [a.costs for a in actions if isinstance(a, EndForward) and a.costs is not None]


def test_a_worker_without_a_profile_reports_what_it_has_measured() -> None:
    core = WorkerCore(INFO, [9], UniBoostMemGuard())
    last = reported(serve(core, TRUE))[-1]
    assert last.per_request == pytest.approx(TRUE.per_request, rel=0.3)
    assert last.per_prefill_token == pytest.approx(TRUE.per_prefill_token, rel=0.3)
    assert core.measured_costs == last


def test_the_policy_of_a_worker_decides_by_what_was_measured() -> None:
    core = WorkerCore(INFO, [9], UniBoostMemGuard())
    list(serve(core, TRUE))
    constant, prompt, output = core.constants
    assert (constant.name, constant.source) == ("recompute", Source.MEASURED)
    in_full = TRUE.seconds(INFO.chunk_tokens, 0, 0, 0) / INFO.chunk_tokens
    assert constant.value == pytest.approx(in_full, rel=0.3)
    assert (prompt.name, prompt.value, prompt.source) == (
        "prompt token",
        constant.value,
        Source.MEASURED,
    )
    assert (output.name, output.source) == ("output token", Source.MEASURED)


def test_a_decoded_token_takes_its_share_of_the_passes_that_it_is_in() -> None:
    meter = CostMeter(INFO, Costs(), MemoryRates(), can_swap=False)
    decoding, mixed = Share(0, 0, 10, 500), Share(40, 0, 10, 500)
    for _ in range(64):
        for share in (decoding, mixed, Share(64, 0, 0, 0), Share(0, 0, 3, 90)):
            meter.ran([share], TRUE.seconds(*share), 1)
    alone = TRUE.seconds(0, 0, 10, 500)
    mean = (2 * alone + TRUE.seconds(0, 0, 3, 90)) / 23
    assert meter.costs.decode_per_token == pytest.approx(mean, rel=0.25)
    assert meter.costs.source_of("decode_per_token") is Source.MEASURED


def test_a_profile_that_holds_is_not_replaced_and_nothing_is_reported() -> None:
    settings = WorkerSettings(costs=Costs.of([(Role.UNIFIED, A100)]))
    info = WorkerInfo("w", "w:1", Role.UNIFIED, "m", 1, A100.chunk_tokens, 4, 512, 1000, 8)
    core = WorkerCore(info, [9], UniBoostMemGuard(), settings)
    assert not reported(serve(core, A100.pass_time))
    assert core.measured_costs is None
    assert core.constants[0].source is Source.PROFILE


def test_a_profile_that_does_not_hold_gives_way() -> None:
    slow = PassTime(0.1, 1e-3, 1e-2, 1e-4)
    settings = WorkerSettings(costs=Costs.of([(Role.UNIFIED, A100)]))
    core = WorkerCore(INFO, [9], UniBoostMemGuard(), settings)
    last = reported(serve(core, slow))[-1]
    assert last.per_request == pytest.approx(slow.per_request, rel=0.3)


def test_costs_are_reported_once_and_again_to_a_new_leader() -> None:
    core = WorkerCore(INFO, [9], UniBoostMemGuard())
    sent = reported(serve(core, TRUE))
    assert len(sent) == len(set(sent))
    greeting = core.handle(LeaderConnected(WantedReports()), now=1e3)
    (snapshot,) = (a for a in greeting if isinstance(a, Snapshot))
    assert snapshot.costs == sent[-1]


def test_swaps_count_there_and_back_where_there_is_host_memory() -> None:
    rates = MemoryRates()
    rates._swap.add(1.0, 1000)
    for can_swap, per_token in ((True, 2e-3), (False, 0.0)):
        meter = CostMeter(INFO, Costs(), rates, can_swap=can_swap)
        for batch in range(1, 100):
            meter.ran([Share(0, 0, batch, 50 * batch)], TRUE.seconds(0, 0, batch, 50 * batch), 1)
        assert meter.costs.swap_per_token == pytest.approx(per_token)


def test_the_link_is_what_transfers_took_and_is_reported_once_it_has_drifted() -> None:
    rates = MemoryRates()
    meter = CostMeter(INFO, Costs(link_bytes_per_s=1e9), rates, can_swap=False)

    def reported_after(num_bytes: int, seconds: float) -> MeasuredCosts | None:
        rates.sent(num_bytes, seconds)
        meter.sent()
        return meter.take_news()

    assert reported_after(1_000_000, 0.0) is None  # nobody timed it
    assert reported_after(1_000_000, 1.1e-3) is None  # as the profile says
    report = reported_after(100_000_000, 0.4)
    assert report is not None
    assert 1 / report.link_per_byte == pytest.approx(2.5e8, rel=0.02)
    assert meter.costs.link_bytes_per_s == pytest.approx(2.5e8, rel=0.02)
    assert meter.costs.source_of("link_bytes_per_s") is Source.MEASURED
    assert reported_after(100_000_000, 0.41) is None


def test_a_worker_reports_the_constants_of_its_order_at_first_and_when_one_has_drifted() -> None:
    core = WorkerCore(INFO, [0], Headway(HeadwayParams(promise=10.0)))
    reports = [each.constants for each in serve(core, TRUE) if isinstance(each, EndForward)]
    told = [{each.name: each for each in report} for report in reports if report]
    assert told[0]["T"].source == Source.MEASURED.value or told[0]["T"].value == 10.0
    assert told[-1]["T"] == UsedConstant("T", told[-1]["ℓ"].value, "measured")
    assert 0 < told[-1]["ρ"].value <= 1
    assert len(told) < len(reports) / 2
    (snapshot,) = (
        each
        for each in core.handle(LeaderConnected(WantedReports()), now=1e6)
        if isinstance(each, Snapshot)
    )
    assert {each.name for each in snapshot.constants} >= {"T", "ℓ", "ρ", "W"}


def test_a_constant_that_never_comes_is_reported_once() -> None:
    core = WorkerCore(INFO, [0], Headway(HeadwayParams(unread_wait=float("inf"))))
    snapshot = next(each for each in serve(core, TRUE) if isinstance(each, Snapshot))
    assert UsedConstant("T", float("inf"), "given") in snapshot.constants
