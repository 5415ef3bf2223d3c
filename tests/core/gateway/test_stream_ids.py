"""Ids of streams: drawn from a key, and the same again from a copy."""

from __future__ import annotations

import pickle

from headway.core.gateway.stream_ids import StreamIds


def test_a_copy_draws_the_same_and_another_key_others() -> None:
    ids = StreamIds(b"a" * 32)
    ids()
    again = pickle.loads(pickle.dumps(ids))
    drawn = [ids() for _ in range(1000)]
    assert [again() for _ in range(1000)] == drawn
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= each < 2**64 for each in drawn)
    assert max(drawn) >= 2**60
    other = StreamIds(b"b" * 32)
    assert not set(drawn) & {other() for _ in range(1000)}
