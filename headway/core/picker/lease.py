"""Leadership among several pickers: a candidate for one lease.

As in Kubernetes' own elections, nobody compares clocks: a lease runs from when its last change was
seen. Two that lead for a moment do no harm, and none does, so a leader stays one until it sees
another.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A lease as it was read; ``holder`` is "" for nobody, ``version`` changes with each write."""

    holder: str
    version: str
    seconds: float


class LeaseStep(Enum):
    """A candidate's next step."""

    CREATE = "create"
    WRITE = "write"  # take or renew it, if it is still as it was read
    WAIT = "wait"


class LeaseCandidate:
    """One picker; ``name`` tells it from the others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.leads = False
        self._last: LeaseSeen | None = None
        self._changed_at = -inf

    def seen(self, lease: LeaseSeen | None, *, now: float) -> LeaseStep:
        """Take the lease as it was read, None if there is none."""
        if lease is None:
            return LeaseStep.CREATE
        if lease != self._last:
            self._last, self._changed_at = lease, now
        if lease.holder in ("", self._name):
            return LeaseStep.WRITE
        self.leads = False
        has_run_out = now >= self._changed_at + lease.seconds
        return LeaseStep.WRITE if has_run_out else LeaseStep.WAIT

    def wrote(self) -> None:
        """Note that its name is in the lease now."""
        self.leads = True
