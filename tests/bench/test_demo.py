"""``headway demo``: loads in proportion to a capacity, pairs, and verdicts by rule."""

from __future__ import annotations

import argparse
import json
import random
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.demo.capacity import Capacity, capacity_of, tokens_per_s
from bench.demo.live import Pair, Setting, most_carrying, values_of
from bench.demo.load import (
    BURST,
    LEAST_REQUESTS,
    OVERLOAD,
    REGIMES,
    LoadBounds,
    Offer,
    Regime,
    completion,
    mix,
    unread,
)
from bench.serve.classes import Alone, by_class
from bench.serve.plan import Plan, Planned
from bench.serve.replay import ReplayedRequest
from cli import demo
from cli.options import parse_seconds
from headway.errors import HeadwayError
from headway.metrics import RequestTimes
from services.local.options import WorkerCounts

BOUNDS = LoadBounds(30.0, 600)
regimes = pytest.mark.parametrize("regime", REGIMES.values(), ids=list(REGIMES))


def parsed(*args: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    demo.add_options(parser)
    return parser.parse_args(args)


# --- the load -------------------------------------------------------------------------


@regimes
@given(saturation=st.floats(0.001, 1e5), seconds=st.floats(1, 3600), most=st.integers(24, 10_000))
def test_the_load_is_a_share_of_what_the_cluster_carries_and_never_over_its_bounds(
    regime: Regime, saturation: float, seconds: float, most: int
) -> None:
    try:
        offer = Offer.of(regime, saturation, LoadBounds(seconds, most))
    except HeadwayError:
        assert int(saturation * regime.mean * seconds) < LEAST_REQUESTS
        return
    assert LEAST_REQUESTS <= offer.num_requests <= most
    assert offer.seconds <= seconds * (1 + 1e-9)
    assert offer.rate == pytest.approx(saturation * regime.mean)


@regimes
def test_a_slow_and_a_fast_cluster_see_the_same_shape(regime: Regime) -> None:
    slow, fast = (Offer.of(regime, rate, LoadBounds(60.0, 90)) for rate in (2.0, 200.0))
    assert slow.num_requests == fast.num_requests == 90
    assert slow.seconds == pytest.approx(100 * fast.seconds)
    one, other = slow.plan("m", 3), fast.plan("m", 3)
    assert [each.body for each in one.requests] == [each.body for each in other.requests]
    for each, same in zip(one.requests, other.requests, strict=True):
        assert each.arrival_at == pytest.approx(100 * same.arrival_at)


def test_a_cluster_that_carries_too_little_is_refused_with_a_way_out() -> None:
    with pytest.raises(HeadwayError, match=r"carries 0.5 requests/s.*give a longer --for"):
        Offer.of(BURST, 0.5, BOUNDS)


def test_a_burst_is_below_saturation_on_average_and_far_beyond_it_for_a_while() -> None:
    assert BURST.mean < 0.8
    assert BURST.peak >= 2.0
    offer = Offer.of(BURST, 20.0, BOUNDS)
    instants = [each.arrival_at for each in offer.plan("m", 1).requests]
    begins = BURST.begins * offer.seconds
    within = sum(begins <= at < begins + offer.peak_seconds for at in instants)
    assert offer.peak_seconds == pytest.approx(5.0)
    assert within / offer.peak_seconds == pytest.approx(2.0 * 20.0, rel=0.2)
    assert (len(instants) - within) / 25.0 == pytest.approx(0.5 * 20.0, rel=0.2)


def test_an_overload_is_beyond_saturation_all_the_time() -> None:
    offer = Offer.of(OVERLOAD, 15.0, BOUNDS)
    instants = [each.arrival_at for each in offer.plan("m", 1).requests]
    for third in range(3):
        within = sum(10.0 * third <= at < 10.0 * (third + 1) for at in instants)
        assert within / 10.0 == pytest.approx(1.3 * 15.0, rel=0.2)


@regimes
def test_a_seed_gives_the_same_requests_at_the_same_instants(regime: Regime) -> None:
    offer = Offer.of(regime, 10.0, BOUNDS)
    plan = offer.plan("m", 3)
    assert plan == offer.plan("m", 3)
    assert len(plan.requests) == offer.num_requests
    assert offer.plan("m", 4) != plan
    instants = [each.arrival_at for each in plan.requests]
    assert instants == sorted(instants)
    assert 0.0 <= instants[0] <= instants[-1] <= offer.seconds


def kinds(plan: Plan) -> Counter[str]:
    return Counter(
        "unread" if not one.is_read else "reasoning" if one.reasons else "chat"
        for one in plan.requests
    )


@pytest.mark.parametrize("num_requests", [6, 24, 300])
def test_even_a_small_load_has_all_kinds(num_requests: int) -> None:
    for seed in range(20):
        found = kinds(mix("m", num_requests, random.Random(seed)))
        assert found["reasoning"] == round(0.4 * num_requests)
        assert found["unread"] == max(1, round(0.1 * num_requests))
        assert found.total() == num_requests


def test_who_is_not_read_opts_out_of_pacing() -> None:
    plan = mix("m", 40, random.Random(1))
    for one in plan.requests:
        body = json.loads(one.body)
        assert (body.get("headway") == {"pacing": False}) == (not one.is_read)
        assert ("messages" in body) == one.reasons == (one.path == "")
    assert kinds(unread(plan)) == {"unread": 40}
    assert all(b'"pacing": false' in one.body for one in unread(plan).requests)


def test_every_event_tells_its_tokens() -> None:
    bodies = [json.loads(one.body) for one in mix("m", 40, random.Random(1)).requests]
    assert all(body["stream_options"]["continuous_usage_stats"] for body in bodies)


def test_chats_end_by_length_where_a_model_does_not_end_them() -> None:
    chats = [one for one in mix("m", 40, random.Random(1), 32).requests if one.reasons]
    assert {json.loads(one.body)["max_tokens"] for one in chats} == {32}
    free = [one for one in mix("m", 40, random.Random(1)).requests if one.reasons]
    assert all("max_tokens" not in json.loads(one.body) for one in free)
    assert len(free) == len(chats) == 16


# --- what a cluster carries -----------------------------------------------------------


def outcome(
    first: float,
    first_answer: float | None,
    *gaps: float,
    sent_at: float = 0.0,
    planned: Planned | None = None,
) -> ReplayedRequest:
    times = RequestTimes(sent_at, first, first_answer, first + sum(gaps), 1 + len(gaps))
    planned = planned or Planned(0, 0.0, b"", "", None)
    found = ReplayedRequest(planned, sent_at, times=times, gaps=array("d", gaps), prompt_tokens=100)
    found.ended_at = first + sum(gaps)
    return found


def full_loop(num_requests: int, in_flight: int, seconds: float) -> list[ReplayedRequest]:
    """A closed loop whose requests take the same ``seconds``, in ten tokens each."""
    gap = seconds / 10
    begins = [seconds * (n // in_flight + n % in_flight / in_flight) for n in range(num_requests)]
    return [outcome(at + gap, None, *[gap] * 9, sent_at=at) for at in begins]


def test_saturation_is_what_a_full_loop_generates() -> None:
    loop = full_loop(40, 8, 2.0)
    assert tokens_per_s(loop) == pytest.approx(8 * 10 / 2.0, rel=0.05)


def test_the_end_of_a_loop_when_places_are_free_does_not_count() -> None:
    loop = full_loop(40, 8, 2.0)
    straggler = outcome(30.0, None, *[10.0] * 9, sent_at=loop[-1].sent_at)
    assert tokens_per_s([*loop[:-1], straggler]) == pytest.approx(40.0, rel=0.05)


def test_a_capacity_has_the_mean_request_and_the_time_of_one_alone() -> None:
    alone = [outcome(9.0, None, 1.0)] + [outcome(0.2, None, 0.01, 0.01)] * 3
    found = capacity_of(alone, full_loop(16, 8, 1.0), full_loop(40, 8, 2.0))
    assert found.alone == pytest.approx((0.2, 0.01))
    assert found.requests_per_s == pytest.approx(4.0, rel=0.05)
    assert found.solo == pytest.approx(0.2 + 9 * 0.01)
    assert found.prompt_tokens_per_s == pytest.approx(16 * 100 / 2.875)
    assert "40 tokens/s at saturation" in str(found)


def test_what_cannot_be_measured_is_refused() -> None:
    alone, loop = full_loop(4, 1, 0.1), full_loop(40, 8, 2.0)
    with pytest.raises(HeadwayError, match="too slow to be measured"):
        capacity_of(alone, loop, full_loop(10, 8, 2.0))
    broken = replace(loop[3], error_kind="HTTP 503", error="no worker")
    with pytest.raises(HeadwayError, match=r"warm-up failed .HTTP 503.: no worker"):
        capacity_of(alone, loop, [*loop, broken])


# --- classes --------------------------------------------------------------------------


def test_qoe_counts_from_the_first_answering_token() -> None:
    smooth = outcome(1.0, 3.0, 2.0, 0.05, 0.05)
    stalled = outcome(1.0, 1.0, 0.05, 5.0, 0.05)
    assert by_class([smooth])["qoe_kept"] == 1.0
    assert by_class([stalled])["qoe_kept"] == 0.0
    assert by_class([smooth])["lateness_p99"] == pytest.approx(0.0)


def test_a_request_without_an_answer_has_no_ttfat() -> None:
    values = values_of([outcome(1.0, None, 0.1, 0.1)])
    assert (values["ttfat"], values["ttft"]) == ([], [1.0])
    assert "short_ttfat_p99" not in by_class([outcome(1.0, None, 0.1, 0.1)])


def test_a_request_that_was_planned_as_a_chat_is_one_whatever_its_first_token_shows() -> None:
    planned = Planned(0, 0.0, b"", "", None, reasons=False)
    found = by_class([outcome(1.0, 1.1, 0.1, 0.1, planned=planned)])
    assert found["chat_ttft_p99"] == 1.0
    assert "long_ttfat_p99" not in found


def test_who_is_not_read_has_a_slowdown_and_no_lateness() -> None:
    planned = Planned(0, 0.0, b"", "", None, reasons=False, is_read=False)
    found = by_class([outcome(1.0, 1.0, 0.5, 0.5, planned=planned)], Alone(0.2, 0.1))
    assert found["unread_ttlt_p99"] == 2.0
    assert found["unread_slowdown_p99"] == pytest.approx(2.0 / 0.4)
    assert "lateness_p99" not in found


# --- the whole ------------------------------------------------------------------------


def a_pair() -> Pair:
    carried = Capacity(600.0, 5000.0, 100.0, Alone(0.05, 0.002))
    pair = Pair(1)
    pair.capacities = {"a": carried, "b": replace(carried, tokens_per_s=900.0)}
    pair.offers = {"burst": Offer.of(BURST, carried.requests_per_s, BOUNDS)}
    return pair


def test_the_file_has_what_each_pair_carried_and_was_offered() -> None:
    written = json.loads(json.dumps(a_pair().packed()))
    assert written["capacities"]["a"]["tokens_per_s"] == 600.0
    assert written["offers"]["burst"]["num_requests"] == 135


def test_a_pair_tells_when_the_machine_changed() -> None:
    assert a_pair().drift == pytest.approx(0.5)


def test_the_load_of_a_pair_is_a_share_of_what_its_clusters_carry_on_average() -> None:
    pair = a_pair()
    pair.capacities["b"] = replace(pair.capacities["b"], alone=Alone(0.04, 0.003))
    assert pair.saturation == pytest.approx((6.0 + 9.0) / 2)
    assert pair.alone == Alone(0.04, 0.002)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), [WorkerCounts(0, 0, unified=2), WorkerCounts(1, 1)]),
        (("--topology", "unified", "--decode", "3"), [WorkerCounts(0, 0, unified=4)]),
        (("--topology", "split", "--prefill", "2"), [WorkerCounts(2, 1)]),
        (("--engine", "vllm-native", "--decode", "2"), [WorkerCounts(0, 0, unified=2)]),
    ],
)
def test_topologies_have_the_same_number_of_workers(
    flags: tuple[str, ...], expected: list[WorkerCounts]
) -> None:
    assert demo._topologies(parsed(*flags)) == expected


def test_a_preset_has_the_topology_that_carries_most_and_the_first_of_equal_ones() -> None:
    unified, split = demo._topologies(parsed())
    slow, fast = (a_pair().capacities["b"], a_pair().capacities["b"])
    fast = replace(fast, tokens_per_s=2 * slow.tokens_per_s)
    assert most_carrying({unified: slow, split: fast}) == split
    assert most_carrying({unified: slow, split: slow}) == unified


def test_clusters_of_different_topologies_say_nothing_of_the_machines_drift() -> None:
    pair = a_pair()
    assert pair.drift > 0.0
    unified, split = demo._topologies(parsed())
    pair.workers = {"a": unified, "b": split}
    assert pair.drift == 0.0


def test_a_regime_alone_takes_less_time_than_both() -> None:
    def setting(*given: Regime) -> Setting:
        return Setting("m", [WorkerCounts(1, 1)], "cpu", 4, 120, given, BOUNDS, Path("run"))

    assert setting(BURST).most_seconds < setting(*REGIMES.values()).most_seconds < 1800
    assert setting(BURST).usual_seconds < setting(BURST).most_seconds


def test_a_request_of_random_text_asks_for_so_many_tokens() -> None:
    body = json.loads(completion("m", random.Random(1), 30, 7).body)
    assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"]) == (30, 7, True)


def test_a_time_has_a_unit_or_is_in_seconds() -> None:
    assert [parse_seconds(text) for text in ("90", "1.5s", "5m", "1h")] == [90, 1.5, 300, 3600]
    assert parsed("--for", "2m").seconds == 120.0
    with pytest.raises(argparse.ArgumentTypeError, match="60s, 5m or 1h"):
        parse_seconds("soon")
