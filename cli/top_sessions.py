"""The sessions in ``headway top``: who sits where, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from cli.cells import number, seconds, share, table_of

Json = Mapping[str, Any]
_MOST_CHARS = 40


def sessions_table(frame: Json) -> Table:
    """Return the newest sessions. Names are their clients', so that no markup in them is read."""
    sessions = frame["sessions"]
    names = ("session", "tenant", "state", "last on", "why", "turns", "cached", "age")
    table = table_of(names, first_number=5)
    table.title_justify = "left"
    table.title = Text(f"{sessions['running']} sessions with a turn now, {sessions['idle']} idle")
    held = frame.get("cluster", {}).get("held", {})
    for row in sessions["rows"].values():
        workers = " → ".join(row["workers"])
        table.add_row(
            Text(_short(row["session"])),
            Text(row["tenant"] or "–"),
            Text(_state(row, held, frame)),
            Text(workers or "–"),
            Text(row["why"] or "–"),
            number(row["turns"]),
            share(row.get("cached")),
            seconds(_since(frame, row["began_at"])),
        )
    return table


def _state(row: Json, held: Json, frame: Json) -> str:
    """Return what a session does now; one whose turn is held says for which unit."""
    waits_for = held.get(row.get("request", ""))
    if waits_for is not None:
        return f"waits for {waits_for['unit']}"
    if row["running"]:
        return "turn runs"
    return f"idle {seconds(_since(frame, row['idle_since']))}"


def _since(frame: Json, at: float) -> float:
    return max(0.0, float(frame.get("now", at)) - at)


def _short(name: str) -> str:
    return name if len(name) <= _MOST_CHARS else name[: _MOST_CHARS - 1] + "…"
