"""Lines of strangers in the log."""

from __future__ import annotations

from services.runtime.log_limit import LogLimit


def test_sixty_lines_a_minute_go_through_and_the_next_says_how_many_did_not() -> None:
    lines = LogLimit()
    assert [lines.take(1000.0 + n / 10) for n in range(100)] == [0] * 60 + [None] * 40
    assert lines.take(1060.0) == 40
    assert lines.take(1060.1) == 0
    assert lines.take(5000.0) == 0
