"""Progress shows what is tried and what is best, to people alone."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from results.progress import bar, counted


def shown_on(console: Console) -> str:
    """Return what a bar leaves on a console before it ends."""
    with bar("planning", 4, console) as shown:
        shown.tries("sbs 2U [1]")
        shown.has_best("vllm-like 3U")
        shown.advance()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_what_is_tried_the_best_so_far_and_how_much_is_done() -> None:
    text = shown_on(Console(file=io.StringIO(), force_terminal=True, width=120))
    for part in ("planning", "1/4", "sbs 2U [1]", "best so far: vllm-like 3U"):
        assert part in text


def test_a_narrow_terminal_shows_the_best_before_what_is_tried() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with bar("planning", console=console) as shown:
        shown.has_best("headway 6P+2D, 97.1%")
        shown.tries("headway 7P+2D (31 clusters before)")
    assert isinstance(console.file, io.StringIO)
    assert "best so far: headway 6P+2D, 97.1%" in console.file.getvalue()


def test_nothing_is_shown_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown_on(Console(file=io.StringIO())) == ""
    assert list(counted(iter("ab"), "runs", ["first", "second"])) == ["a", "b"]
    assert capsys.readouterr() == ("", "")
