"""Claims: what a row says, and that a study measures what it says."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from headway.sim.records import Record
from studies import bursts, curves, pascal, sbs, sbs_decode, star, tokenscale
from studies.bursts import DATA_VARIABLE, MAIN
from studies.claims import Bar, Claim, PerSeed, change, run_all, unanimous
from studies.compared import Compared, Expected, Quantity
from studies.curves import Point
from studies.runs import Job, Results

KEYS = [
    "paper",
    "claim",
    "scenario",
    "paper_value",
    "baseline",
    "ours",
    "spread",
    "seeds",
    "holds",
    "note",
    "against",
    "asked",
]


def test_a_row_has_the_agreed_keys() -> None:
    claim = Claim("sbs", "c", "s", "-30 %", PerSeed((1.0,)), PerSeed((0.7,)), holds=True)
    assert list(claim.packed()) == KEYS


def test_changes_are_taken_seed_by_seed() -> None:
    assert change([1.0, 2.0], [0.5, 2.0]).values == (-0.5, 0.0)
    assert PerSeed((3.0,)).spread == 0.0


def test_jobs_come_back_in_order_from_any_number_of_processes() -> None:
    assert run_all(abs, [-3, -1, -2], 1) == run_all(abs, [-3, -1, -2], 2) == [3, 1, 2]


def test_the_rate_at_a_limit_is_interpolated_and_stays_on_the_curve() -> None:
    curve = {10.0: 1.0, 20.0: 2.0, 30.0: 4.0}
    assert curves.rate_at(curve, 1.5) == 15.0
    assert curves.rate_at(curve, 3.0) == 25.0
    assert curves.rate_at(curve, 9.0) == 30.0
    assert curves.rate_at(curve, 0.5) == 10.0


def test_staggered_batches_wait_less_than_immediate_round_robin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sbs, "NUM_REQUESTS", 400)
    job = Job(sbs.SHORT, "sbs", 75.0, seed=1)
    ours = sbs.measure(job)
    theirs = sbs.measure(job._replace(system="round-robin/round-robin"))
    assert ours == sbs.measure(job)
    assert ours["ttft"] < theirs["ttft"]
    assert 0.0 < ours["utilisation"] <= 1.0


@pytest.mark.parametrize("rule", sbs.RULES)
def test_every_baseline_rule_runs(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbs, "NUM_REQUESTS", 150)
    found = sbs.measure(Job(sbs.SHORT, f"{rule}/pbaa", 30.0, 1))
    assert found["ttft"] > 0.15


def test_every_placed_request_makes_a_token_and_none_is_lost() -> None:
    batch = sbs_decode.Batch(4, seed=1)
    assert batch.step() == 0
    batch.unit[:] = 0
    assert batch.step() == 4 * sbs_decode.PER_UNIT
    assert len(batch.waiting()) + int(batch.loads()[0].sum()) == 4 * sbs_decode.PER_UNIT


@pytest.mark.parametrize("rule", ["lex", "iqr-lex", "min-cost"])
def test_placement_by_load_evens_out_what_round_robin_leaves_uneven(rule: str) -> None:
    ours = sbs_decode.measure(Job("every pass", rule, 0.0, seed=1))
    theirs = sbs_decode.measure(Job("every pass", "round-robin", 0.0, seed=1))
    assert ours["sigma"] < theirs["sigma"]
    assert ours["tokens_per_s"] > theirs["tokens_per_s"]


@pytest.mark.parametrize(
    ("num_values", "expected"),
    [(9, 9.0), (10, 10.0), (19, 18.0), (20, 20.0), (99, 95.0), (100, 100.0)],
)
def test_the_tail_of_a_bin_is_the_papers_percentile_for_its_size(
    num_values: int, expected: float
) -> None:
    assert pascal.tail([float(n + 1) for n in range(num_values)]) == expected


def test_a_verdict_is_open_where_the_noise_over_seeds_is_larger_than_the_distance() -> None:
    bar = Bar(-0.30)
    assert bar.judge(PerSeed((-0.40, -0.41, -0.39))) is True
    assert bar.judge(PerSeed((-0.10, -0.11, -0.09))) is False
    assert bar.judge(PerSeed((-0.50, -0.31, -0.12))) is None
    assert bar.judge(PerSeed((-0.31, -0.34, -0.37))) is None  # 4.3 standard errors of 1.7 %
    assert bar.judge(PerSeed((-0.31, -0.34, -0.37) * 3)) is True  # 2.3 of 0.9 %


@pytest.mark.parametrize("changes", [(-0.9,), (-0.9, -0.8), (-0.9, -0.9, -0.9)])
def test_few_seeds_and_a_constant_have_no_verdict(changes: tuple[float, ...]) -> None:
    for bar in (Bar(-0.30), Bar(-0.30, at_least=True)):
        assert bar.judge(PerSeed(changes)) is None


def test_no_change_in_any_seed_passes_a_bar_that_lies_beyond_it() -> None:
    same = PerSeed((0.0, 0.0, 0.0))
    assert Bar(-0.01, at_least=True, by_points=True).judge(same) is True
    assert Bar(-0.3).judge(same) is False
    for at_least in (True, False):
        assert Bar(0.0, at_least=at_least).judge(same) is None


def test_a_count_is_judged_seed_by_seed() -> None:
    assert unanimous([True] * 3) is True
    assert unanimous([False] * 3) is False
    assert unanimous([True, False, True]) is None
    assert unanimous([True] * 2) is None


@pytest.mark.parametrize("num_seeds", [3, 5])
def test_chance_alone_passes_a_bar_in_one_of_forty(num_seeds: int) -> None:
    rng, bar = random.Random(1), Bar(0.1, at_least=True)
    verdicts = [
        bar.judge(PerSeed(tuple(rng.gauss(0.1, 0.05) for _ in range(num_seeds))))
        for _ in range(5000)
    ]
    assert 0.02 < verdicts.count(True) / len(verdicts) < 0.03


def test_a_bar_is_told_with_the_noise_that_it_allows_for() -> None:
    assert Bar(-0.3).limit_text(PerSeed((-0.2, -0.3, -0.4))) == "at most -30.0% (noise 24.8%)"
    points = Bar(0.02, at_least=True, by_points=True)
    assert points.limit_text(PerSeed((0.0, 0.0, 0.0))) == "at least +0.02 (noise 0)"
    assert points.limit_text(PerSeed((0.5,))) == "at least +0.02 (noise unknown)"


def test_a_change_is_a_share_of_the_baseline_or_in_points() -> None:
    before, after = PerSeed((0.5, 0.0)), PerSeed((0.6, 0.3))
    assert Bar(0.0).changes(before, after).values == pytest.approx((0.2, 1.0))
    assert Bar(0.0, by_points=True).changes(before, after).values == pytest.approx((0.1, 0.3))


def test_a_row_says_against_what_what_was_asked_and_what_others_had() -> None:
    figures = {"plain": 2.0, "ours": 1.0, "other": 1.5}
    rows = {Job("busy", name, 3.0, 1): {"p99": value} for name, value in figures.items()}
    expected, pair = Expected("-60 %", Bar(-0.6), "why"), ("plain", "ours")
    row = Compared("P99", ("busy", 3.0), Quantity("p99"), pair, expected, ("other",))
    found = row.judged("p", "a place, 3 requests/s", Results(rows))
    assert (found.against, found.baseline, found.ours, found.verdict) == ("plain", 2.0, 1.0, "open")
    assert found.note == "-50.0% ± 0.0%; why; other 1.5"
    assert found.asked == "at most -60.0% (noise unknown)"
    assert found.scenario == "a place, 3 requests/s; seconds"


def test_a_frontier_keeps_its_best_and_is_compared_over_what_both_span() -> None:
    curve = curves.frontier([(10.0, 0.8), (6.0, 0.6), (8.0, 0.9)])
    assert curve == [(6.0, 0.6), (8.0, 0.9), (10.0, 0.9)]
    assert curves.place_of(curve, 0.75) == pytest.approx(7.0)
    assert curves.place_of(curve, 0.5) == 6.0
    assert curves.place_of(curve, 0.95) is None
    assert curves.shared_span(curve, [(7.0, 0.5), (12.0, 1.0)]) == (7.0, 12.0)
    assert curves.mean_over([(0.0, 0.0), (1.0, 1.0)], 0.0, 1.0) == pytest.approx(0.5)
    assert curves.value_at(curve, 99.0) == 0.9


def test_a_pass_with_a_predictor_is_longer_the_more_often_it_predicts() -> None:
    base, *others = (
        star.profile_of(system, 1000).pass_time.base
        for system in (star.CURRENT, star.OURS, *star.EVERY)
    )
    assert [other / base for other in others] == pytest.approx([1.00385, 1.077, 1.00077])


def write_azure(folder: Path, hours: list[int]) -> None:
    """Write a trace in Azure's format with an arrival at the start of each hour."""
    rows = [f"2023-11-16 {hour:02}:00:00.0,100,10" for hour in hours]
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])
    with gzip.open(folder / "azure_llm_2023_code.csv.gz", "wt") as file:
        file.write(text)


def test_a_recorded_workload_has_requests_though_its_trace_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(bursts, "SECONDS", 0.05)  # the trace runs at 6 requests/s
    write_azure(tmp_path, [0, 1, 2, 3])
    code = bursts.WORKLOADS["Azure code"]
    assert all(list(bursts.arrivals(seed, code)) for seed in range(20))


def test_unified_replicas_stay_as_many_as_the_headroom_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bursts, "SECONDS", 3.0)
    few, many = (
        tokenscale.measure(Job(bursts.MAIN, tokenscale.UNIFIED, headroom, 1))
        for headroom in (1.0, 0.5)
    )
    assert (few["gpus"], many["gpus"]) == (5.0, 10.0)
    assert few["lost"] == many["lost"] == 0


def test_a_limit_between_tokens_is_the_workloads() -> None:
    slow = Record("r", 0.0, 10, 0, 3, [], 0.1, 0.1, 0.2, 3, True)  # 50 ms from one to the next
    assert tokenscale.keeps(slow, bursts.WORKLOADS[bursts.MAIN].tpot)
    assert not tokenscale.keeps(slow, bursts.WORKLOADS[bursts.TIGHT].tpot)


HAS_IT, LATER, NEVER = [(8.0, 0.98)], [(8.0, 0.9), (12.0, 0.98)], [(7.0, 0.5)]


@pytest.mark.parametrize(
    ("baseline", "ours", "holds"),
    [
        (LATER, HAS_IT, True),
        (HAS_IT, LATER, False),
        (HAS_IT, NEVER, False),
        (NEVER, NEVER, None),
        (NEVER, HAS_IT, None),  # it would take more than 7 GPUs, but nobody knows how many
        ([(9.0, 0.9)], HAS_IT, True),
    ],
)
def test_gpus_that_were_never_enough_are_a_lower_bound(
    baseline: list[Point], ours: list[Point], holds: bool | None
) -> None:
    pairs = [(baseline, [(more * gpus, kept) for gpus, kept in ours]) for more in (1, 1.01, 1.02)]
    assert tokenscale._cost(MAIN, "distserve", pairs).holds is holds
