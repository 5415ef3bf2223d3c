"""The study of dominance: cells, seeds, kept rows, and what counts as paying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from cli.options import parse_seeds
from headway.errors import HeadwayError
from studies import cells, dominance, warm
from studies.claims import PerSeed
from studies.runs import KEEP_VARIABLE, PROFILE_VARIABLE, Job, KeptRows, Results
from studies.systems import PLAIN


def test_seeds_are_a_number_of_runs_or_a_list() -> None:
    assert list(parse_seeds("3")) == [1, 2, 3]
    assert list(parse_seeds("101,205")) == [101, 205]
    assert list(parse_seeds("101,")) == [101]


@pytest.mark.parametrize("text", ["", "0", "x", "1,1", "-1,2", "2000"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(HeadwayError, match="--seeds"):
        parse_seeds(text)


def test_a_cell_draws_the_same_requests_for_a_seed_and_its_share_of_each_class() -> None:
    cell = cells.CELLS["half unread"]
    drawn = list(cells.requests(cell, 101, 1.0))
    assert drawn == list(cells.requests(cell, 101, 1.0))
    assert drawn[-2].arrival_at < cell.seconds <= drawn[-1].arrival_at
    unread = sum(not each.is_read for each in drawn) / len(drawn)
    reasons = sum(each.num_reasoning_tokens > 0 for each in drawn) / len(drawn)
    assert 0.4 < unread < 0.6
    assert 0.3 < reasons < 0.5


@pytest.mark.parametrize("system", dominance.SYSTEMS)
def test_every_system_runs(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: replace(each, seconds=6.0) for name, each in cells.CELLS.items()}
    monkeypatch.setattr(dominance, "CELLS", MappingProxyType(few))
    job = Job("half unread", system, 2.0, 7, "1P+1D")
    row = dominance.measure(job)
    assert row == dominance.measure(job)
    assert 0.0 <= row["attainment"] <= 1.0
    assert row["unread_slowdown_p99"] >= 1.0


def test_every_drawn_cell_is_long_enough_in_every_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "NUM_RESIDENCES", 10.0)
    for cell in (c for c in cells.CELLS.values() if c.trace is None):
        drawn = list(cells.requests(cell, 101, 1.5 * cell.num_instances))
        for topology in cell.topologies:
            warm.require_warm(dominance.cluster_of(PLAIN, cell, topology), drawn)


def test_loads_are_shares_of_what_the_plain_deployment_carries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cells that differ in their load alone are measured once; a rate of its own stands."""
    asked: list[str] = []

    def carried(
        measure: object, places: Mapping[str, object], num_processes: int
    ) -> Mapping[str, float]:
        asked.extend(places)
        return dict.fromkeys(places, 2.0)

    monkeypatch.setattr(dominance, "saturation", carried)
    names = ("mixed, 80%", "mixed, 120%", "bursts × 3", "autoscaled, bursts × 3")
    rates = dominance.rates_of({name: cells.CELLS[name] for name in names}, 1)
    assert list(rates.values()) == [1.6, 2.4, 1.8, 4.0]
    assert asked == ["mixed, 80%", "bursts × 3"]


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        ((1.0,) * 3, (1.0, 1.02, 1.04), True),
        ((1.0,) * 3, (1.2, 1.21, 1.22), False),
        ((100.0,) * 3, (102.9, 103.0, 103.1), False),
        ((100.0,) * 3, (101.4, 101.5, 101.6), True),
        ((100.0,) * 3, (99.0, 103.0, 107.0), None),  # the noise is 9.9
    ],
)
def test_nobody_pays_for_what_nobody_feels(
    before: tuple[float, ...], after: tuple[float, ...], holds: bool | None
) -> None:
    bar = dominance.pays_nothing(PerSeed(before))
    assert bar.judge(bar.changes(PerSeed(before), PerSeed(after))) is holds


def _row(job: Job) -> dict[str, float]:
    return {"value": job.rate}


def test_a_study_goes_on_from_the_rows_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    monkeypatch.setenv(KEEP_VARIABLE, str(file))
    jobs = [Job("s", "a", 1.0, 1), Job("s", "a", 2.0, 1)]
    assert Results.of(_row, jobs[:1], 1).rows[jobs[0]] == {"value": 1.0}
    with file.open("a", encoding="utf-8") as cut:
        cut.write('\n["cut o')
    kept = KeptRows(str(file), _row.__module__)
    assert list(kept.rows) == jobs[:1]
    kept.add(jobs[0], {"value": 5.0})
    assert Results.of(_row, jobs, 1).rows == {jobs[0]: {"value": 5.0}, jobs[1]: {"value": 2.0}}


@pytest.mark.parametrize("variable", ["HEADWAY_POLICY", "HEADWAY_SET", PROFILE_VARIABLE])
def test_rows_of_other_policies_parameters_or_profiles_are_not_taken(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEEP_VARIABLE, str(tmp_path / "rows.jsonl"))
    job = Job("s", "a", 1.0, 1)
    for value, row in (("", 5.0), ("one", 6.0), ("another", 7.0)):
        monkeypatch.setenv(variable, value)
        kept = KeptRows(str(tmp_path / "rows.jsonl"), _row.__module__)
        assert not kept.rows
        kept.add(job, {"value": row})
    monkeypatch.setenv(variable, "one")
    assert Results.of(_row, [job], 1).rows == {job: {"value": 6.0}}
