"""Claims: what a row says, and that a study measures what it says."""

from __future__ import annotations

import pytest

from bench.studies import pascal, sbs, sbs_decode
from bench.studies.claims import Claim, PerSeed, change, run_all
from bench.studies.runs import Job

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
    assert sbs.rate_at(curve, 1.5) == 15.0
    assert sbs.rate_at(curve, 3.0) == 25.0
    assert sbs.rate_at(curve, 9.0) == 30.0
    assert sbs.rate_at(curve, 0.5) == 10.0


def test_staggered_batches_wait_less_than_immediate_round_robin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sbs, "NUM_REQUESTS", 400)
    job = Job(sbs.SCENARIO, "sbs", 75.0, seed=1)
    ours = sbs.measure(job)
    theirs = sbs.measure(job._replace(system="round-robin/round-robin"))
    assert ours == sbs.measure(job)
    assert ours["ttft"] < theirs["ttft"]
    assert 0.0 < ours["utilisation"] <= 1.0


@pytest.mark.parametrize("rule", sbs.RULES)
def test_every_baseline_rule_runs(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbs, "NUM_REQUESTS", 150)
    found = sbs.measure(Job(sbs.SCENARIO, f"{rule}/pbaa", 30.0, 1))
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
