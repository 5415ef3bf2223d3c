"""The law that every life obeys."""

from __future__ import annotations

from headway.life.form import packed, unpacked
from headway.life.record import LifeRecord


def conserves(life: LifeRecord) -> None:
    """Check that the parts have no gap and no overlap, and sum exactly to the whole."""
    at = 0
    for part in life.parts:
        assert part.begin == at, life
        assert part.end > part.begin, life
        at = part.end
    assert sum(part.end - part.begin for part in life.parts) == life.total == at
    if life.instants.end is not None:
        assert life.total == life.instants.end
    order = [at for at in life.instants if at is not None]
    assert order == sorted(order), life.instants
    assert [m.at for m in life.moments] == sorted(m.at for m in life.moments)
    assert unpacked(packed(life)) == life
