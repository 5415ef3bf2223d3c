"""Tables of the terminal, and numbers in their cells; a dash is for what is not known."""

from __future__ import annotations

from rich.table import Table


def table_of(names: tuple[str, ...], first_number: int) -> Table:
    """Return an empty table; its columns from ``first_number`` on have numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place >= first_number else "left", no_wrap=True)
    return table


def number(value: float | None) -> str:
    """Return a number in few digits."""
    return "–" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """Return a time in ms or s."""
    if value is None:
        return "–"
    return f"{value * 1e3:.0f} ms" if abs(value) < 1 else f"{value:.1f} s"


def share(value: float | None) -> str:
    """Return a share in percent."""
    return "–" if value is None else f"{100 * value:.0f} %"
