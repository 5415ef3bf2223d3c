"""Goodput and what it rests on: topologies, saturation, and the search for a rate."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from headway.cluster import Role
from headway.cost.profile import load_profile
from studies import goodput
from studies.best import TUNED, best_topologies, saturation
from studies.cells import MIXED
from studies.dominance import SYSTEMS
from studies.goodput import LEVELS, Goodputs, Search
from studies.layouts import instances, is_split, set_ups, topologies
from studies.runs import Job, Row
from studies.systems import OURS, PLAIN


def test_topologies_begin_with_the_simplest_and_have_all_splits() -> None:
    assert topologies(1) == ["1U"]
    assert topologies(2) == ["2U", "1P+1D", "1P+1C"]
    assert topologies(3) == ["3U", "1P+2D", "2P+1D", "1P+1D+1C", "1P+2C", "2P+1C"]


@pytest.mark.parametrize("topology", topologies(4))
def test_a_topology_has_all_gpus_in_its_roles(topology: str) -> None:
    prefill, others = load_profile("llama-8b-h100"), load_profile("qwen-32b-h100-96")
    kinds = instances(topology, prefill, others)
    assert sum(count for _, count in kinds) == 4
    assert any(kind.role is Role.PREFILL for kind, _ in kinds) is is_split(topology)
    for kind, _ in kinds:
        assert kind.profile is (prefill if kind.role is Role.PREFILL else others)


def test_unified_instances_are_tried_with_smaller_chunks_too() -> None:
    """An operator whose readers wait for others' prompts makes passes shorter first of all."""
    tried = set_ups(topologies(2))
    assert tried == ["2U", "1P+1D", "1P+1C", "2U/768", "2U/512"]
    assert set_ups(["1P+4D"]) == ["1P+4D"]
    profile = load_profile("qwen-32b-h100-96")
    (kind, count), *others = instances("2U/512", profile, profile)
    assert (kind.role, count, others) == (Role.UNIFIED, 2, [])
    assert kind.profile == replace(profile, chunk_tokens=512)
    small = replace(profile, chunk_tokens=256)
    assert instances("2U/512", profile, small)[0][0].profile == small
    prefiller, decoder = (kind for kind, _ in instances("1P/8192+1D", profile, profile))
    assert (prefiller.deployed.chunk_tokens, decoder.deployed) == (8192, profile)


def _carries(job: Job) -> Row:
    """Two unified GPUs carry 3 requests/s, split ones 2."""
    most = 3.0 if job.topology == "2U" else 2.0
    return {"served": min(job.rate, most), "attainment": 1.0 if job.rate < most else 0.5}


def test_saturation_is_what_the_best_plain_topology_carries() -> None:
    assert saturation(_carries, {"here": ["2U", "1P+1D"]}, 1) == {"here": 3.0}


def test_a_system_has_the_topology_that_keeps_most_and_the_simpler_of_equal_ones() -> None:
    places = {"busy": (2.5, ["1P+1D", "2U"]), "idle": (1.0, ["2U", "1P+1D"]), "one": (1.0, ["1U"])}
    best = best_topologies(_carries, places, lambda _: [PLAIN], 1)
    assert [best[place, PLAIN] for place in places] == ["2U", "2U", "1U"]


@pytest.mark.parametrize("first", [0.5, 2.0, 2.9, 8.0])
def test_a_search_finds_the_rate_from_any_first_one(first: float) -> None:
    """Attainment falls from 100 % at 2/s to 80 % at 4/s, so 95 % are kept at 2.5/s."""
    search = Search(first)
    while (rate := search.next_rate(0.95, 1.08)) is not None:
        search.kept[rate] = min(1.0, 1.0 - 0.1 * (rate - 2.0))
    assert search.at(0.95) == pytest.approx(2.5)
    assert len(search.kept) < 14


def test_a_level_that_is_never_kept_ends_the_search_with_nothing() -> None:
    search = Search(2.0)
    while (rate := search.next_rate(0.99, 1.08)) is not None:
        search.kept[rate] = 0.9
    assert search.at(0.99) == 0.0
    assert min(search.kept) > 0.3


def test_goodput_counts_up_to_the_first_rate_that_is_too_high() -> None:
    search = Search(1.0, {1.0: 1.0, 2.0: 0.94, 3.0: 0.96})
    assert search.at(0.95) == pytest.approx(1.0 + 0.05 / 0.06)


def test_goodput_is_of_a_gpu_in_the_best_topology_and_shown_unified_and_split() -> None:
    kept = {"2U": 3.0, "1P+1D": 2.0, "1P+1C": 1.0}
    searches = {
        ("mixed", system, topology, 101): Search(1.0, {rate: 1.0, 2 * rate: 0.0})
        for system in SYSTEMS
        for topology, rate in kept.items()
    }
    ranked = {("mixed", system): list(kept) for system in SYSTEMS}
    found = Goodputs(searches, ranked, [101])
    assert found.kind("mixed", OURS, split=True) == "1P+1D"
    assert found.of("mixed", OURS, 0.99).mean == pytest.approx(3.03 / 2)
    rows = list(goodput._claims(found, "mixed"))
    assert len(rows) == len(LEVELS) * 3
    assert all(row.against and row.asked for row in rows)
    assert "(2U)" in rows[0].note


@pytest.mark.slow
def test_the_study_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(MIXED, seconds=6.0, num_instances=1)
    monkeypatch.setattr(goodput, "PLACES", MappingProxyType({"short": short}))
    monkeypatch.setattr(goodput, "SYSTEMS", (PLAIN, OURS))
    monkeypatch.setattr(goodput, "saturation", lambda *_: {"short": 2.0})
    found = goodput.find(goodput.PLACES, [TUNED], 1)
    assert {name for name, *_ in found.searches} == {"short"}
    assert found.of("short", PLAIN, 0.95).mean > 0.0
