"""``headway bench flood``: what is asked, what is refused, and what is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.floods.live import LiveFlood
from bench.floods.offered import FLOODER, OTHERS, FirstTokens, Flood, FloodRequest, flood_row
from bench.floods.simulated import FloodedCluster, first_tokens
from headway.errors import HeadwayError


@pytest.mark.parametrize(("by", "num_keys"), [("tenant", 3), ("class", 0)])
def test_sides_are_told_apart_by_their_keys_or_by_a_class(
    by: str, num_keys: int, tmp_path: Path
) -> None:
    what = LiveFlood("model", Flood(by), tmp_path)
    sent = [what.planned(FloodRequest(side, 0, 0.0, 300)) for side in (*OTHERS, FLOODER)]
    assert len({key for each in sent for key in each.headers.values()}) == num_keys
    assert [b'"class": "batch"' in each.body for each in sent] == [False, False, by == "class"]
    assert len({each.body for each in sent}) == 3  # no prompt comes twice


def test_a_load_of_nobody_says_what_to_give() -> None:
    with pytest.raises(HeadwayError, match=r"none of the others asked .* more --load, --seconds"):
        flood_row(0, [FirstTokens([], 1.0), FirstTokens([], 0.0)])


def test_a_flood_that_keeps_others_from_their_answers_has_no_figures() -> None:
    cluster = FloodedCluster(num_prefill=1, num_decode=1, patience=1.0)
    with pytest.raises(HeadwayError, match=r"\d+ of \d+ requests of the others failed: give a sm"):
        first_tokens(cluster, Flood(seconds=2.0), 8000)
