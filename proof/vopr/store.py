"""The state store in virtual time: the live store's keys and scripts, and what a store can do.

It may be away, answer late, lose its data, answer with what it held a moment ago, or hold garbage.
``services.runtime.store`` and ``services.runtime.store_scripts`` are what it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeVar

from headway.sim.kernel import Kernel
from proof.vopr.process import EPOCH, SimulatedProcess

T = TypeVar("T")

CALL_TIMEOUT = 1.0
MEMBER_TTL = 3.0
GARBAGE = "\x00garbage"


class LeasedMember(NamedTuple):
    """A member that holds a lease."""

    service: str
    member_id: str
    address: str


class Lease(NamedTuple):
    """The leader's lease, as its key holds it."""

    token: int
    candidate_id: str
    address: str


@dataclass(slots=True)
class Contents:
    """All keys of the cluster."""

    members: dict[str, tuple[LeasedMember | str, float]] = field(default_factory=dict)
    """By id: the member, or garbage, and the instant when its lease ends."""
    leader: tuple[Lease | str, float] | None = None
    fencing: int = 0
    requests: dict[bytes, bytes] = field(default_factory=dict)
    learned: dict[bytes, bytes] = field(default_factory=dict)

    def copy(self) -> Contents:
        """Return what a replica holds."""
        return Contents(
            dict(self.members), self.leader, self.fencing, dict(self.requests), dict(self.learned)
        )


class SimStore:
    """The store and its faults; every call answers, or fails, after a while."""

    def __init__(self, kernel: Kernel, rng: Random, hit: Callable[[str], None]) -> None:
        self._kernel = kernel
        self._rng = rng
        self._hit = hit
        self._now = Contents()
        self._before: Contents | None = None
        self.is_away = 0
        self.extra_delay = 0.0
        self.unreachable: dict[str, int] = {}
        """Processes that a partition keeps from the store."""
        self.owners: dict[int, set[str]] = {}
        """Candidates by fencing token, for the proof: each token has one."""

    # --- faults -----------------------------------------------------------------------

    def wipe(self) -> None:
        """Lose everything, as a restart without persistence does."""
        self._now = Contents()

    def freeze_replica(self) -> None:
        """Answer reads with what is held now, until ``thaw_replica``."""
        self._before = self._now.copy()

    def thaw_replica(self) -> None:
        """Answer reads with what is held."""
        self._before = None

    def scribble(self, what: str) -> None:
        """Replace a value by garbage; its lifetime stays."""
        now = self._now
        if what == "leader" and now.leader is not None:
            now.leader = GARBAGE, now.leader[1]
        elif what == "members":
            now.members = {name: (GARBAGE, until) for name, (_, until) in now.members.items()}
        elif what == "journal":
            now.requests = dict.fromkeys(now.requests, GARBAGE.encode())
            now.requests[b"\xff"] = b"\xff\xfe"

    def usurp(self) -> None:
        """End the leader's lease at once: its holder does not know."""
        self._now.leader = None

    # --- calls ------------------------------------------------------------------------

    def ask(
        self,
        process: SimulatedProcess,
        question: Callable[[], T],
        answered: Callable[[T], None],
        failed: Callable[[], None],
        *,
        within: float = CALL_TIMEOUT,
    ) -> None:
        """Ask in a process; the store acts halfway between question and answer, if at all."""
        within = min(within, CALL_TIMEOUT)
        there, back = self._delay(), self._delay()
        if self.is_away or self.unreachable.get(process.name):
            self._hit("the store does not answer")
            process.after(within if self._rng.random() < 0.5 else there, failed)
            return
        if there + back > within:
            self._hit("the store answers too late")
            process.after(within, failed)
            self._kernel.after(there, question)  # it acts all the same
            return
        said: list[T] = []
        self._kernel.after(there, lambda: said.append(question()))
        process.after(there + back, lambda: answered(said[0]))

    def _delay(self) -> float:
        return self._rng.random() * (1e-3 + self.extra_delay) + 2e-4

    @property
    def _read(self) -> Contents:
        if self._before is not None:
            self._hit("the store answers with old data")
            return self._before
        return self._now

    # --- membership -------------------------------------------------------------------

    def join(self, member: LeasedMember) -> None:
        """Join, or renew the lease."""
        self._now.members[member.member_id] = member, self._kernel.now + MEMBER_TTL

    def leave(self, member_id: str) -> None:
        """Leave."""
        self._now.members.pop(member_id, None)

    def members(self, service: str) -> list[LeasedMember]:
        """Return the members that hold a lease, by id; garbage is skipped."""
        now = self._kernel.now
        held = [m for m, until in self._read.members.values() if until > now]
        return sorted(m for m in held if isinstance(m, LeasedMember) and m.service == service)

    # --- leadership -------------------------------------------------------------------

    def acquire(self, candidate_id: str, address: str, ttl: float, seen: int) -> int | None:
        """Return the fencing token if the candidate leads for the next ``ttl`` seconds.

        ``seen`` is the newest token that the candidate knows.
        """
        now, at = self._now, self._kernel.now
        held = now.leader if now.leader is not None and now.leader[1] > at else None
        if held is not None:
            lease = held[0]
            if not isinstance(lease, Lease) or lease.candidate_id != candidate_id:
                return None
            token = lease.token
        else:
            if now.fencing < seen:
                seen += 16
            token = now.fencing = max(now.fencing + 1, seen + 1, int(EPOCH + at))
        self.owners.setdefault(token, set()).add(candidate_id)
        now.leader = Lease(token, candidate_id, address), at + ttl
        return token

    def release(self, candidate_id: str) -> None:
        """Give up the lead; do nothing if another candidate leads."""
        held = self._now.leader
        lease = held[0] if held is not None else None
        if isinstance(lease, Lease) and lease.candidate_id == candidate_id:
            self._now.leader = None

    def leader(self) -> Lease | None:
        """Return the leader; None if there is none, or none that can be read."""
        held = self._read.leader
        if held is None or held[1] <= self._kernel.now:
            return None
        return held[0] if isinstance(held[0], Lease) else None

    # --- the leader's journal ---------------------------------------------------------

    def write_journal(
        self,
        token: int,
        requests: Mapping[bytes, bytes],
        removed: Sequence[bytes],
        learned: Mapping[bytes, bytes],
    ) -> bool:
        """Write all of it; return False, and write nothing, once a newer token was given out."""
        now = self._now
        if now.fencing != token:
            self._hit("a deposed leader's journal is refused")
            return False
        now.requests.update(requests)
        for key in removed:
            now.requests.pop(key, None)
        now.learned.update(learned)
        return True

    def read_journal(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """Return the last leaders' records."""
        return dict(self._read.requests), dict(self._read.learned)
