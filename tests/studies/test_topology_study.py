"""The study of topologies: its cells, what keeps their limits, and the rule's choice."""

from __future__ import annotations

from math import inf

import pytest

from headway.sim.records import Record, Segment
from studies.claims import Claim
from studies.runs import PROFILE_VARIABLE, Job, Results
from studies.topology import (
    LIMITS,
    OURS,
    PLAIN,
    UNIFIED,
    OnTopology,
    Traffic,
    all_traffic,
    claims_of,
    keeps,
    limit_text,
    measure,
    systems,
    topologies,
)

SHORT = Traffic(512, 32, 0.5)


def record(first_at: float, *gaps: float) -> Record:
    """A request of 512 prompt tokens whose tokens come so."""
    found = Record("r", 0.0, 512, 0, 1 + len(gaps))
    now = first_at
    found.add(Segment(1, now, 0.0, 0.0))
    for gap in gaps:
        now += gap
        found.add(Segment(1, now, 0.0, 0.0))
    found.finished = True
    return found


def test_a_request_keeps_a_limit_by_its_greatest_gap_after_the_second_token() -> None:
    assert keeps(record(0.1, 0.3, 0.04, 0.05), 0.05)  # the second is due at 0.4 + 0.05 s
    assert not keeps(record(0.1, 0.4, 0.04, 0.04), 0.05)
    assert not keeps(record(0.1, 0.04, 0.04, 0.051), 0.05)
    assert keeps(record(0.1, 0.9, 0.9), inf)
    assert not keeps(record(0.41, 0.01), inf)  # the first token was late


def test_a_request_that_did_not_finish_keeps_nothing() -> None:
    lost = record(0.1, 0.01)
    lost.finished = False
    assert not keeps(lost, inf)


def test_all_systems_of_a_cell_serve_the_same_requests() -> None:
    plain, strict = list(SHORT.requests(1)), list(SHORT.requests(1, 0.025))
    told = [[(r.arrival_at, r.num_prompt_tokens, r.num_output_tokens) for r in each]
            for each in (plain, strict)]  # fmt: skip
    assert told[0] == told[1]
    assert {r.standing.service for r in plain} == {None}
    assert {r.standing.service.tpot for r in strict if r.standing.service} == {0.025}


def test_the_rule_splits_where_the_limit_is_strict_and_prompts_are_much() -> None:
    assert [SHORT.chosen(limit) for limit in LIMITS] == ["4U", "4U", "4U", "3P+1D"]


def test_unified_instances_have_a_smaller_chunk_under_a_stricter_limit() -> None:
    chunks = [SHORT.chunk(limit) for limit in LIMITS]
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[0] > chunks[1]


def test_the_map_is_of_the_gpu_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, lengths = SHORT.demand.requests_per_s, {t.name for t in all_traffic()}
    monkeypatch.setenv(PROFILE_VARIABLE, "llama-8b-h100-measured")
    assert 3.0 < SHORT.demand.requests_per_s / usual < 3.5
    assert {t.name for t in all_traffic()} == lengths
    assert "3P/8192+1D" in topologies()


def test_a_run_says_what_share_keeps_its_limits() -> None:
    traffic = Traffic(8192, 128, 0.5)
    split = next(s for s in systems(traffic) if s.order == PLAIN and s.topology == "3P+1D")
    row = measure(Job(traffic.name, split.name, traffic.load, 1))
    assert set(row) == {limit_text(limit) for limit in LIMITS}
    assert row["25 ms"] > 0.9


@pytest.mark.parametrize(("ours", "verdict"), [(0.98, "no"), (0.993, "yes")])
def test_ours_is_compared_with_the_best_plain_topology(ours: float, verdict: str) -> None:
    limit = 0.025
    rows = {
        Job(SHORT.name, OnTopology(PLAIN, t, limit if t == UNIFIED else inf).name, 0.5, seed): {
            "25 ms": 1.0 if t == "2P+2D" else 0.5 + seed / 1000
        }
        for t in topologies()
        for seed in (1, 2, 3)
    }
    for seed in (1, 2, 3):
        job = Job(SHORT.name, OnTopology(OURS, "3P+1D", limit).name, 0.5, seed)
        rows[job] = {"25 ms": ours + seed / 1000}
    of_rule, of_ours = claims_of(Results(rows), SHORT, limit)
    assert isinstance(of_rule, Claim)
    assert of_rule.verdict == "no"  # plain on 3P+1D has half
    assert "2P+2D" in of_ours.against
    assert of_ours.verdict == verdict
