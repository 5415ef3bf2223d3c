"""What a worker writes down of its passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cluster import Role, WorkerInfo
from headway.cost.pass_time import Share
from headway.engine import Computed, EngineStepped, PassPlan
from headway.errors import HeadwayError
from headway.forward_pass import ForwardPass, PassItem
from headway.request import SamplingParams, StreamKey
from planning.profile.model import read_records
from services.worker.pass_record import PassRecord, share_of

GREEDY = SamplingParams(temperature=0.0)


def info(num_units: int = 1) -> WorkerInfo:
    return WorkerInfo("w-1", "w:1", Role.UNIFIED, "m", num_units, 512, 16, 100, 1000, 8)


def forward_pass(*shares: tuple[int, int]) -> ForwardPass:
    """Items of so many tokens, from so many on."""
    items = tuple(
        PassItem(StreamKey("g", n), (1,) * count, start, (), False, GREEDY, (), ())
        for n, (count, start) in enumerate(shares)
    )
    return ForwardPass(1, items)


def step(ended_at: float, seconds: float, *shares: tuple[int, int]) -> EngineStepped:
    """A pass that an engine has planned itself: so many tokens, from so many on."""
    computed = tuple(Computed(StreamKey("g", n), at, k) for n, (k, at) in enumerate(shares))
    return EngineStepped(seconds, (), PassPlan(len(shares), computed), ended_at)


def test_a_share_tells_prompts_from_decoding() -> None:
    assert share_of([(0, 30), (20, 10), (99, 1), (9, 1)]) == Share(40, 200, 2, 110)


def test_a_pass_that_its_engine_planned_is_written_as_one_of_ours(tmp_path: Path) -> None:
    record = PassRecord(str(tmp_path), info())
    record.stepped(step(1.5, 0.5, (30, 0), (1, 99)))
    record.stepped(step(1.6, 0.099, (1, 100)))
    record.stepped(EngineStepped(0.1, ()))
    record.stepped(step(4.0, 0.0))
    record.stepped(step(7.25, 0.25, (1, 101)))
    record.close()
    (written,) = read_records(tmp_path)
    assert [p.seconds for p in written.passes] == pytest.approx([0.501, 0.099, 0.25])
    assert written.began_at == pytest.approx([1.0, 1.501, 7.0])
    assert [p.share for p in written.passes] == [
        Share(30, 0, 1, 100),
        Share(0, 0, 1, 101),
        Share(0, 0, 1, 102),
    ]


def test_a_pass_lasts_until_the_next_where_that_follows_at_once(tmp_path: Path) -> None:
    record = PassRecord(str(tmp_path), info())
    for started_at, ended_at in ((1.0, 1.5), (1.501, 1.6), (7.0, 7.25)):
        record.started(forward_pass((5, 0)), started_at)
        record.ended(ended_at)
    record.close()
    (written,) = read_records(tmp_path)
    assert written.worker["num_blocks"] == 100
    assert [p.seconds for p in written.passes] == pytest.approx([0.501, 0.099, 0.25])
    assert written.began_at == [1.0, 1.501, 7.0]
    assert written.passes[0].share == Share(5, 0, 0, 0)


def test_a_pass_that_was_planned_ahead_begins_as_the_one_before_it_ends(tmp_path: Path) -> None:
    record = PassRecord(str(tmp_path), info())
    record.started(forward_pass((5, 0)), 1.0)
    record.started(forward_pass((1, 5)), 1.1)
    record.ended(1.5)
    record.started(forward_pass((1, 6)), 1.55)
    record.ended(1.75)
    record.ended(2.0)
    record.close()
    passes = read_records(tmp_path)[0].passes
    assert [p.seconds for p in passes] == pytest.approx([0.5, 0.25, 0.25])
    assert [p.share for p in passes[1:]] == [Share(0, 0, 1, 6), Share(0, 0, 1, 7)]


def test_several_units_are_refused_and_a_folder_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="passes are recorded of one"):
        PassRecord(str(tmp_path), info(num_units=2))
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwayError, match="cannot be recorded"):
        PassRecord(str(tmp_path / "file"), info())
