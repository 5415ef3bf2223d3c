"""Which leaders a worker obeys: the newest, by a fencing token that a store can have given out."""

from __future__ import annotations

from headway.errors import Code, HeadwayError

MOST_AHEAD = 86_400.0
"""The store's tokens are its clock's seconds, plus one for each election within a second.

Hosts' clocks may differ by minutes. A token further ahead is no store's: it would shut out every
leader to come.
"""


def require_newest(fencing_token: int, newest: int, *, now: float) -> None:
    """Raise FAILED_PRECONDITION for a leader that is not to be obeyed.

    ``newest``: the highest token obeyed so far. ``now``: seconds since the epoch.
    """
    if fencing_token < newest:
        raise HeadwayError(
            Code.FAILED_PRECONDITION,
            f"fencing token is {fencing_token}; a leader with {newest} has come since: this "
            "scheduler no longer leads",
        )
    if fencing_token > now + MOST_AHEAD:
        raise HeadwayError(
            Code.FAILED_PRECONDITION,
            f"fencing token is {fencing_token}; the store gives out its clock's seconds, and the "
            f"clock here says {now:.0f}: compare the clocks of worker and store",
        )
