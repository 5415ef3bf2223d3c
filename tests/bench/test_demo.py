"""``headway demo``: loads in proportion to a capacity, pairs, and verdicts by rule."""

from __future__ import annotations

import argparse
import io
import json
import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.demo import compare as whole
from bench.demo.capacity import Capacity, capacity_of, tokens_per_s
from bench.demo.compare import order_of, report
from bench.demo.live import Pair, PresetRun, Setting, most_carrying
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
from bench.demo.paired import PairedSamples, paired
from bench.demo.table import print_compared, print_rule, values_of
from bench.demo.verdict import FIGURES, ComparedFigure, Figure, Judgement, compared
from bench.serve.classes import Alone, by_class
from bench.serve.plan import Plan, Planned
from bench.serve.replay import ReplayedRequest
from cli import demo
from cli.options import parse_seconds
from headway.errors import Code, HeadwayError
from headway.metrics import RequestTimes
from services.local.options import PolicyOptions, WorkerCounts

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


# --- verdicts -------------------------------------------------------------------------

TAIL, KEPT = FIGURES[1], next(each for each in FIGURES if each.name == "qoe_kept")


def judged(before: tuple[float, ...], after: tuple[float, ...], figure: Figure = TAIL) -> Judgement:
    return ComparedFigure(figure, before, after).verdict


def test_a_change_in_every_pair_counts() -> None:
    assert judged((2.0, 2.2, 2.1), (1.0, 1.1, 1.2)) is Judgement.BETTER
    assert judged((1.0, 1.1, 1.2), (2.0, 2.2, 2.1)) is Judgement.WORSE
    assert judged((0.7, 0.72, 0.71), (0.9, 0.93, 0.92), KEPT) is Judgement.BETTER
    assert judged((0.9, 0.93, 0.92), (0.7, 0.72, 0.71), KEPT) is Judgement.WORSE


def test_a_change_that_the_pairs_do_not_agree_on_is_unclear() -> None:
    assert judged((2.0, 2.0, 2.0), (1.0, 2.9, 1.5)) is Judgement.UNCLEAR


def test_a_change_below_the_bar_is_none_however_sure_it_is() -> None:
    assert judged((0.02, 0.02, 0.02), (0.08, 0.08, 0.09)) is Judgement.EQUAL  # nobody notices
    assert judged((100.0,) * 3, (101.8, 101.8, 101.9)) is Judgement.EQUAL  # under 2 %
    assert judged((100.0,) * 3, (102.1, 102.1, 102.2)) is Judgement.WORSE


def test_pairs_that_all_change_alike_say_nothing_of_their_spread() -> None:
    assert judged((2.0, 2.0, 2.0), (1.0, 1.0, 1.0)) is Judgement.UNCLEAR
    assert judged((0.3, 0.2, 0.1), (1.3, 1.2, 1.1)) is Judgement.UNCLEAR  # but for rounding
    assert judged((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)) is Judgement.EQUAL


@pytest.mark.parametrize(
    ("num_sampled", "verdict"),
    [(1, Judgement.UNCLEAR), (2, Judgement.UNCLEAR), (3, Judgement.BETTER)],
)
def test_an_interval_of_requests_is_of_the_pairs_that_have_some(
    num_sampled: int, verdict: Judgement
) -> None:
    rng = random.Random(1)
    waits = [[4.0 + rng.random() for _ in range(60)] for _ in range(3)]
    before = [{"chat_ttft_p99": 5.0}] * 3
    after = [{"chat_ttft_p99": 4.0}] * 3
    samples = of_requests(*((each, [wait - 1.0 for wait in each]) for each in waits[:num_sampled]))
    (row,) = compared(before, after, samples=[*samples, *[{}] * (3 - num_sampled)])
    assert row.verdict is verdict


@pytest.mark.parametrize("num_pairs", [1, 2])
def test_two_pairs_have_no_verdict_whatever_they_say(num_pairs: int) -> None:
    assert judged((2.0,) * num_pairs, (1.0,) * num_pairs) is Judgement.TOO_FEW
    assert judged((2.0,) * num_pairs, (2.0,) * num_pairs) is Judgement.TOO_FEW


def of_requests(*pairs: tuple[list[float], list[float]]) -> list[PairedSamples]:
    return [{"chat_ttft": (np.array(one), np.array(other))} for one, other in pairs]


def by_requests(*pairs: tuple[list[float], list[float]]) -> ComparedFigure:
    before, after = (
        [{"chat_ttft_p99": float(np.quantile(each[side], 0.99))} for each in pairs]
        for side in (0, 1)
    )
    (row,) = compared(before, after, samples=of_requests(*pairs))
    return row


def test_what_every_request_gains_counts_although_the_pairs_differ_by_far_more() -> None:
    rng = random.Random(1)
    pairs = []
    for level in (1.0, 4.0, 9.0):
        waits = [level + rng.random() for _ in range(60)]
        pairs.append((waits, [each - 0.4 for each in waits]))
    row = by_requests(*pairs)
    assert row.verdict is Judgement.BETTER
    assert row.noise < 0.1


def test_one_request_that_waits_long_makes_no_verdict() -> None:
    rng = random.Random(1)
    pairs = [([rng.random() for _ in range(30)], [rng.random() for _ in range(30)]) for _ in "abc"]
    pairs[1][1][7] = 60.0
    row = by_requests(*pairs)
    assert row.change > row.bar
    assert row.verdict is Judgement.UNCLEAR


def test_requests_are_paired_by_their_place_and_have_the_class_of_the_first_preset() -> None:
    plan = [Planned(n, 0.0, b"", "", None, reasons=n > 0) for n in range(4)]
    before = [outcome(1.0 + n, 3.0 + n, *[1.0] * (2 + n), planned=plan[n]) for n in range(4)]
    after = [outcome(2.0 + n, 4.0 + n, *[1.0] * (9 - n), planned=plan[n]) for n in range(4)]
    failed = replace(after[1], times=None)
    found = paired(before, [after[3], after[2], failed, after[0]], Alone(0.1, 0.1))
    chats, long = found["chat_ttft"], found["long_ttfat"]
    assert [each.tolist() for each in chats] == [[1.0], [2.0]]
    assert [each.tolist() for each in long] == [[6.0], [7.0]]
    assert found["slowdown"][0].shape == (3,)


def test_the_noise_is_half_of_the_95_percent_interval() -> None:
    found = ComparedFigure(TAIL, (0.0,) * 5, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert found.noise == pytest.approx(2.78 * 1.5811 / 5**0.5, rel=1e-3)
    assert ComparedFigure(TAIL, (0.0,) * 12, tuple(map(float, range(12)))).noise > 0.0


@given(
    pairs=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=2, max_size=15),
    figure=st.sampled_from(FIGURES),
)
def test_what_is_better_one_way_is_worse_the_other_way_round(
    pairs: list[tuple[float, float]], figure: Figure
) -> None:
    before, after = zip(*pairs, strict=True)
    opposite = {Judgement.BETTER: Judgement.WORSE, Judgement.WORSE: Judgement.BETTER}
    one, other = ComparedFigure(figure, before, after), ComparedFigure(figure, after, before)
    if abs(one.change) - one.noise > max(one.bar, other.bar):  # a share of the first preset
        assert other.verdict is opposite.get(one.verdict, one.verdict)


def test_a_figure_that_a_run_lacks_leaves_that_pair_out() -> None:
    rows = compared(
        [{"chat_ttft_p99": 1.0}, {"chat_ttft_p99": 2.0}, {}],
        [{"chat_ttft_p99": 3.0}, {"qoe_kept": 1.0}, {"chat_ttft_p99": 1.0}],
    )
    assert [(row.figure.name, row.before, row.after) for row in rows] == [
        ("chat_ttft_p99", (1.0,), (3.0,))
    ]


# --- the whole ------------------------------------------------------------------------


def test_every_second_pair_runs_in_reverse() -> None:
    one, other = PolicyOptions("vllm-like"), PolicyOptions("headway")
    orders = [order_of([one, other], place) for place in range(3)]
    assert orders == [[one, other], [other, one], [one, other]]


def a_pair(seed: int, before: float, after: float) -> Pair:
    carried = Capacity(600.0, 5000.0, 100.0, Alone(0.05, 0.002))
    pair = Pair(seed, "2026-01-01 00:00:00", 1.5)
    pair.capacities = {"a": carried, "b": replace(carried, tokens_per_s=900.0)}
    pair.offers = {"burst": Offer.of(BURST, carried.requests_per_s, BOUNDS)}
    runs = {
        "a": PresetRun((), {"chat_ttft_p99": before}),
        "b": PresetRun((), {"chat_ttft_p99": after}),
    }
    pair.runs = {"burst": runs}
    return pair


def test_the_file_has_the_pairs_and_a_verdict_a_figure() -> None:
    pairs = [a_pair(1, 2.0, 1.0), a_pair(2, 2.1, 1.1), a_pair(3, 2.2, 1.1)]
    written = json.loads(json.dumps(report(pairs, ["a", "b"])))
    (row,) = written["verdicts"]["burst"]["b"]
    assert (row["figure"], row["verdict"]) == ("chat_ttft_p99", "better")
    assert row["change"] == pytest.approx(-1.0333, rel=1e-3)
    assert [pair["seed"] for pair in written["pairs"]] == [1, 2, 3]
    assert written["pairs"][0]["capacities"]["a"]["tokens_per_s"] == 600.0
    assert written["pairs"][0]["offers"]["burst"]["num_requests"] == 135
    assert json.loads(json.dumps(report(pairs[:1], ["a", "b"])))["verdicts"]["burst"]["b"]


async def test_a_demo_that_is_refused_half_way_shows_and_keeps_the_pairs_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = []

    async def run_pair(
        setting: Setting, policies: Sequence[PolicyOptions], seed: int, console: Console
    ) -> tuple[Pair, int]:
        orders.append([each.preset for each in policies])
        if seed == 3:
            raise HeadwayError(Code.UNAVAILABLE, "the cluster does not serve")
        return a_pair(seed, 2.0 + seed / 10, 1.0), 0

    monkeypatch.setattr(whole, "run_pair", run_pair)
    setting = Setting("m", [WorkerCounts(1, 1)], "cpu", 4, 120, [BURST], BOUNDS, tmp_path)
    file, both = tmp_path / "demo.json", [PolicyOptions("a"), PolicyOptions("b")]
    with pytest.raises(HeadwayError, match="does not serve"):
        await whole.compare(setting, both, [1, 2, 3], file, None)
    assert orders == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert [pair["seed"] for pair in json.loads(file.read_text())["pairs"]] == [1, 2]
    said = capsys.readouterr().out
    assert "burst: 270 requests a preset in 2 pairs" in said
    assert "one cluster carried 50% more than another" in said


def test_a_pair_tells_when_the_machine_changed() -> None:
    assert a_pair(1, 1.0, 1.0).drift == pytest.approx(0.5)


def test_the_table_has_a_change_a_threshold_and_a_verdict_in_each_row() -> None:
    console = Console(file=io.StringIO(), width=160)
    rows = compared(
        [{"chat_ttft_p99": seconds, "qoe_kept": 0.8} for seconds in (2.0, 2.1, 2.2)],
        [
            {"chat_ttft_p99": 1.0, "qoe_kept": 0.9},
            {"chat_ttft_p99": 1.12, "qoe_kept": 0.9},
            {"chat_ttft_p99": 1.18, "qoe_kept": 0.6},
        ],
    )
    print_compared(console, "title", ("a", "b"), rows)
    print_rule(console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "chats: TTFT P99, s" in text
    assert "2.1 (2 to 2.2)" in text
    assert "-48%" in text
    assert "b against a: 1 better, 1 unclear" in text
    assert "2%" in text


@pytest.mark.parametrize("presets", ["sbs", "sbs,sbs", "sbs,fast", "sbs,headway,sbs"])
def test_fewer_than_two_known_presets_are_refused(presets: str) -> None:
    with pytest.raises(HeadwayError, match="preset"):
        demo.run(parsed("--presets", presets))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--for", "0s"),
        ("--for", "2h"),
        ("--num-requests", "3"),
        ("--warm-up", "1"),
        ("--max-running", "0"),
        ("--decode", "0"),
        ("--seeds", "0"),
        ("--seeds", "1,1"),
    ],
)
def test_what_is_out_of_bounds_is_refused_before_anything_starts(flag: str, value: str) -> None:
    with pytest.raises(HeadwayError, match=flag):
        demo.run(parsed(flag, value))


def test_the_load_of_a_pair_is_a_share_of_what_its_clusters_carry_on_average() -> None:
    pair = a_pair(1, 1.0, 1.0)
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
    slow, fast = (a_pair(1, 1.0, 1.0).capacities["b"], a_pair(1, 1.0, 1.0).capacities["b"])
    fast = replace(fast, tokens_per_s=2 * slow.tokens_per_s)
    assert most_carrying({unified: slow, split: fast}) == split
    assert most_carrying({unified: slow, split: slow}) == unified


def test_clusters_of_different_topologies_say_nothing_of_the_machines_drift() -> None:
    pair = a_pair(1, 1.0, 1.0)
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
