"""The seconds that a sender of KV counts for each of its transfers."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.kv_sender import SharedLink


@dataclass
class Use:
    """A transfer, as a link knows it."""

    seconds: float = 0.0


def test_transfers_share_the_seconds_in_which_the_link_is_in_use() -> None:
    link, one, other = SharedLink(), Use(), Use()
    link.used_by(one, 100.0)
    link.used_by(other, 102.0)
    link.left_by(one, 106.0)
    link.left_by(other, 107.0)
    assert (one.seconds, other.seconds) == (4.0, 3.0)  # of 7
    link.used_by(one, 200.0)
    link.left_by(other, 201.0)  # it is not there
    link.left_by(one, 202.0)
    link.left_by(one, 210.0)
    assert (one.seconds, other.seconds) == (6.0, 3.0)
