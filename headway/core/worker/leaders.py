"""Which leaders a worker obeys: the newest, by a fencing token that a store can have given out."""

from __future__ import annotations

from headway.errors import Code, HeadwayError
from headway.messages import ControlHello

PER_SECOND = 1_000_000
"""The store's tokens are its clock's microseconds, and up to 0.07 s more."""
MOST_AHEAD = 86_400.0
"""Seconds. Hosts' clocks may differ by minutes.

A token further ahead is no store's: it would shut out every leader to come.
"""

SUPERSEDED = "a newer leader has come"


def is_superseded(reason: str) -> bool:
    """Return whether a leader's stream ended because its worker follows a newer one."""
    return SUPERSEDED in reason


def require_newest(fencing_token: int, newest: int, *, now: float) -> None:
    """Raise FAILED_PRECONDITION for a leader that is not to be obeyed.

    ``newest``: the highest token obeyed so far. ``now``: seconds since the epoch.
    """
    if fencing_token < newest:
        raise HeadwayError(
            Code.FAILED_PRECONDITION,
            f"fencing token is {fencing_token}; {SUPERSEDED}, with {newest}: this scheduler no "
            "longer leads",
        )
    if fencing_token > (now + MOST_AHEAD) * PER_SECOND:
        raise HeadwayError(
            Code.FAILED_PRECONDITION,
            f"fencing token is {fencing_token}; the store gives out its clock's microseconds, and "
            f"the clock here says {now * PER_SECOND:.0f}: compare the clocks of worker and store",
        )


def require_meant(hello: ControlHello, worker_id: str) -> None:
    """Raise NOT_FOUND for a leader that means the worker that had this address before."""
    if hello.worker_id not in ("", worker_id):
        message = f"this is worker {worker_id}, not {hello.worker_id}, which had its address before"
        raise HeadwayError(Code.NOT_FOUND, message)


def farewell(fencing_token: int, former: int) -> HeadwayError:
    """Return the end of a leader's stream that another stream replaces; tokens of both.

    FAILED_PRECONDITION says that a newer leader has this worker's requests now. A leader that has
    opened a second stream itself is told otherwise: orders on the first one are lost.
    """
    if fencing_token > former:
        return HeadwayError(Code.FAILED_PRECONDITION, SUPERSEDED)
    return HeadwayError(Code.UNAVAILABLE, "its leader has opened a newer stream")
