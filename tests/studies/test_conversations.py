"""The study of conversations: its loads, its rows, and what its claims say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from cli import main
from headway.sim.sessions import SessionLoad
from studies import conversations
from studies.bursts import DATA_VARIABLE
from studies.conversation_loads import AIPERF, LOADS
from studies.runs import Job, Results, Row

FAST = {"ttft_mean": 0.1, "ttft_p50": 0.1, "ttft_p99": 0.4, "hit_share": 0.9, "unended": 0.0}
SLOW = {**FAST, "ttft_mean": 0.2, "ttft_p99": 0.5}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load with a few sessions."""
    small = {
        name: replace(load, number=2 if load.kind else 8)
        for name, load in LOADS.items()
        if load.is_there
    }
    monkeypatch.setattr(conversations, "LOADS", MappingProxyType(small))


def results(ours: Row, theirs: Row, load: str = AIPERF, spread: float = 0.0) -> Results:
    """Return figures of three seeds; ours differ between two by ``spread``, a share."""
    rows = {}
    for system in conversations.SYSTEMS:
        for seed in (1, 2, 3):
            more = 1 + spread * (seed - 2)
            varied = {name: more * value for name, value in ours.items()}
            rows[Job(load, system.name, 0.0, seed)] = (
                varied if system.name == "sbs-warm" else theirs
            )
    return Results(rows)


@pytest.mark.parametrize("name", [name for name, load in LOADS.items() if load.kind])
def test_a_load_is_the_same_for_a_seed_and_another_for_others(name: str) -> None:
    few_of = replace(LOADS[name], number=5)
    first, again, other = (few_of.make(seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert isinstance(first, SessionLoad) == (name != AIPERF)


def test_mooncakes_is_left_out_without_its_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert "Mooncake × 0.7" not in conversations.loads()
    assert len(conversations.loads()) == len(LOADS) - 1


def test_half_the_kv_is_half_of_it() -> None:
    ((whole, _),) = LOADS["agents, heavy"].conditions().instances
    ((half, _),) = LOADS["agents, thrash"].conditions().instances
    assert half.profile.kv_capacity_tokens == whole.profile.kv_capacity_tokens // 2


def test_a_run_gives_what_the_table_shows(few: None) -> None:
    row = conversations.measure(Job("mixed", "sbs-warm", 0.0, 5))
    assert row == conversations.measure(Job("mixed", "sbs-warm", 0.0, 5))
    assert row["unended"] == 0.0
    assert set(conversations.FIGURES) | set(conversations.SHARES) <= set(row)


def test_the_table_has_every_seed_and_the_mean() -> None:
    rows = list(conversations.table(results(FAST, SLOW)))
    assert len(rows) == 4 * len(conversations.SYSTEMS)
    assert all(len(row) == len(conversations.TITLES) for row in rows)
    ours = [row for row in rows if row[1] == "sbs-warm"]
    assert [row[2] for row in ours] == ["1", "2", "3", "mean"]
    assert ours[-1][3:] == ("0.1", "0.1", "0.4", "-", "90", "0")


def test_claims_compare_with_the_best_rival_of_each_load() -> None:
    claims = conversations.claims(results(FAST, SLOW, spread=0.002))
    by_title = {claim.claim: claim for claim in claims}
    assert by_title[f"{AIPERF}: TTFT mean, s"].note.startswith("-50.0%")
    assert by_title[f"{AIPERF}: TTFT P99, s"].holds
    assert by_title["loads with a mean TTFT under every rival's"].ours == 1.0
    *others, wins = claims
    assert all(claim.holds for claim in others)
    assert wins.verdict == "yes"
    assert not any("task" in claim.claim for claim in claims)  # an open loop has none


def test_claims_that_do_not_hold_say_so() -> None:
    cold = {**SLOW, "cold_p99": 2.0}
    found = results(cold, {**FAST, "cold_p99": 1.0}, "mixed", spread=0.002)
    verdicts = {claim.claim: claim.holds for claim in conversations.claims(found)}
    assert verdicts["mixed: TTFT mean, s"] is False
    assert verdicts["mixed: TTFT P50, s"]  # as good as theirs
    assert verdicts["mixed: TTFT P99 of cold prompts"] is False
    assert verdicts["loads with a mean TTFT under every rival's"] is False


@pytest.mark.slow
def test_every_system_serves_every_load(few: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "conversations", "--seeds", "1", "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert all(system.name in shown for system in conversations.SYSTEMS)
    assert "3 × DP 8, long chats: TTFT P99, s" in shown
