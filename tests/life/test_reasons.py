"""A wait is told under the name of its cause."""

from __future__ import annotations

import pytest

from headway.life.moments import Moment, MomentKind
from headway.life.parts import PartKind, parts_of
from headway.life.reasons import Reason, reasons_of
from headway.life.record import Crowd, Instants, LifeRecord, TokenTally

M = MomentKind
CAME = (Moment(10, M.SENT), Moment(20, M.QUEUED, "a"))
COMPUTED = (Moment(31, M.COMPUTED, "a"), Moment(31, M.PREFILLED, "a"))
ARRIVED = (Moment(32, M.ARRIVING, "b"), Moment(33, M.WAITS_ON, "b"))


def queue_reason(*moments: Moment, end: int) -> Reason:
    """Return why a request waited on workers, before which eight others were."""
    life = LifeRecord(
        "r", "g", "m", 1.5, "stop", "", "", "", True, TokenTally(5), Crowd(8, 800, 1.0, 1.0),
        Instants(end=end), moments, parts_of(moments, end),
    )  # fmt: skip
    return next(each for each in reasons_of(life) if each.kind is PartKind.QUEUE)


@pytest.mark.parametrize(
    ("admitted_at", "name"), [(30, "behind others"), (21, "waited for blocks")]
)
def test_kv_that_waits_for_blocks_is_not_behind_who_came_first(admitted_at: int, name: str) -> None:
    admitted = Moment(admitted_at, M.ADMITTED, "a", 5)
    resumed = Moment(38, M.ADMITTED, "b", 1)
    found = queue_reason(*CAME, admitted, *COMPUTED, *ARRIVED, resumed, end=90)
    assert found.name == name
    assert ("blocks of b" in found.why) == (name == "waited for blocks")


def test_an_attempt_that_begins_again_is_behind_others() -> None:
    lost = (Moment(40, M.LOST, "a"), Moment(41, M.SENT), Moment(42, M.QUEUED, "b"))
    admitted = (Moment(21, M.ADMITTED, "a", 5), Moment(31, M.COMPUTED, "a"))
    found = queue_reason(*CAME, *admitted, *lost, Moment(80, M.ADMITTED, "b", 6), end=90)
    assert found.name == "behind others"
