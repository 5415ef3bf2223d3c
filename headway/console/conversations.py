"""Sessions as the console shows them: who sits where, what was cached there, and why."""

from __future__ import annotations

from typing import Any

from headway.core.gateway.sessions import SessionRow, Sessions

Json = Any
MOST_SESSIONS = 20
"""Sessions shown: those with a running turn, then those that ended one last."""


def sessions_of(sessions: Sessions, now: float) -> dict[str, Json]:
    """Return how many sessions there are, and the newest ones by their place.

    Instants are told in place of ages, so that a row without news does not change.
    """
    rows = sessions.newest(MOST_SESSIONS, now=now)
    return {
        "running": sessions.num_running,
        "idle": sessions.num_idle,
        "rows": {str(place): _row(row, now) for place, row in enumerate(rows)},
    }


def _row(row: SessionRow, now: float) -> dict[str, Json]:
    place = row.place
    fields: dict[str, Json] = {
        "session": row.session_id,
        "tenant": row.tenant,
        "turns": row.num_turns,
        "running": row.num_running,
        "workers": list(place.worker_ids),
        "why": place.decision,
        "began_at": round(now - row.age, 2),
    }
    if place.num_prompt:
        fields["cached"] = round(place.num_cached / place.num_prompt, 3)
    if row.request_id:
        fields["request"] = row.request_id
    else:
        fields["idle_since"] = round(now - row.idle, 2)
    return fields
