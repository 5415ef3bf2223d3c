"""Bounds that clients share fairly: one client's flood leaves room for the others.

A client is an API key, or an address where no key is given.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from headway.errors import Code, HeadwayError

J = TypeVar("J")


class Bound:
    """A resource of which clients take amounts and give them back.

    One client may hold at most α times what is free (dynamic thresholds: Choudhury and Hahne,
    IEEE/ACM Transactions on Networking 6(2), 1998), with α = share / (1 - share). Alone, it may
    hold ``share`` of the capacity; the fuller the resource, the less anybody may take; and some of
    it is always free for a newcomer. With a share of 1, the capacity is the only bound.
    """

    def __init__(self, what: str, capacity: int, share: float, flag: str, fewer: str = "") -> None:
        """``fewer``: what to ask for instead of what is too much for one client alone."""
        self.capacity = capacity
        self._most_alone = min(capacity, int(share * (capacity + 1)))
        self._fewer = fewer
        self.num_taken = 0
        self._what = what
        self._flag = flag
        self._alpha = share / (1.0 - share) if share < 1.0 else float(capacity + 1)
        self._held: dict[str, int] = {}

    def held_by(self, client: str) -> int:
        """Return the amount that the client holds."""
        return self._held.get(client, 0)

    def has_room(self, client: str, amount: int = 1) -> bool:
        """Return whether the client may take this amount now."""
        # The last of the amount must find room as if the others were taken one by one.
        free = self.capacity - self.num_taken - (amount - 1)
        return free > 0 and self._held.get(client, 0) + amount <= self._alpha * free

    def take(self, client: str, amount: int = 1) -> bool:
        """Take an amount if the client may; return whether it did. Nothing is always to be had."""
        if not amount:
            return True
        held = self._held.get(client, 0) + amount
        free = self.capacity - self.num_taken - (amount - 1)  # as in has_room, for every request
        if free <= 0 or held > self._alpha * free:
            return False
        self.num_taken += amount
        self._held[client] = held
        return True

    def give_back(self, client: str, amount: int = 1) -> None:
        """Return an amount that the client has taken."""
        if not amount:
            return
        left = self._held[client] - amount
        assert left >= 0, "a client gives back what it took"
        self.num_taken -= amount
        if left:
            self._held[client] = left
        else:
            del self._held[client]

    def refusal(self, client: str, amount: int = 1, *, retry_after: float = 1.0) -> HeadwayError:
        """Return the refusal of an amount, with ``retry_after`` in seconds.

        INVALID_ARGUMENT, with what to ask for instead, where no client could ever have so much.
        """
        if self._fewer and amount > self._most_alone:
            message = (
                f"a call of {client} asks for {amount} {self._what}; one client may have "
                f"{self._most_alone} of {self.capacity} ({self._flag}): ask for {self._fewer}"
            )
            return HeadwayError(Code.INVALID_ARGUMENT, message)
        most = min(self.capacity, int(self._alpha * (self.capacity - self.num_taken)))
        message = (
            f"{client} has {self.held_by(client)} {self._what} and asks for {amount} more; "
            f"{self.num_taken} of {self.capacity} are taken ({self._flag}), and one client may "
            f"have {most} now: end some, or try again in {retry_after:.0f} s"
        )
        return HeadwayError(Code.RESOURCE_EXHAUSTED, message, retry_after=retry_after)


class Charge:
    """A client's charge on one account, for instance a connection's bytes."""

    __slots__ = ("_bound", "_client", "amount")

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._client = ""
        self.amount = 0

    def change(self, client: str, amount: int) -> bool:
        """Charge the client with this amount in place of the last; nothing if it may not."""
        if self.amount:
            self._bound.give_back(self._client, self.amount)
        self._client, self.amount = client, 0
        if amount and not self._bound.take(client, amount):
            return False
        self.amount = amount
        return True


class Places:
    """The open outputs of all clients: how many wait for their first token, and how many are open.

    A call with several outputs takes a place for each. ``masks``: milliseconds of masks that the
    grammars of open outputs are expected to cost workers.
    """

    def __init__(self, waiting: Bound, open_: Bound, masks: Bound) -> None:
        self.waiting = waiting
        self.open = open_
        self.masks = masks

    def full(self, client: str, amount: int = 1) -> Bound | None:
        """Return the bound that refuses the client so many more outputs, None for none."""
        bounds = (self.waiting, self.open)
        return next((bound for bound in bounds if not bound.has_room(client, amount)), None)

    def take(self, client: str, amount: int, mask_ms: int = 0) -> Bound | None:
        """Open outputs, which wait; return the bound that refuses them, and take nothing then."""
        asked = ((self.waiting, amount), (self.open, amount), (self.masks, mask_ms))
        for number, (bound, each) in enumerate(asked):
            if not bound.take(client, each):
                for taken, given in asked[:number]:
                    taken.give_back(client, given)
                return bound
        return None


class Place:
    """The place of one output, which begins to wait."""

    __slots__ = ("_ended", "_mask_ms", "_places", "_waiting", "client")

    def __init__(self, places: Places, client: str, mask_ms: int = 0) -> None:
        self._places = places
        self._mask_ms = mask_ms
        self.client = client
        self._waiting = True
        self._ended = False

    def begin(self) -> None:
        """Wait no longer: the first token is there. Repeats do nothing."""
        if self._waiting:
            self._waiting = False
            self._places.waiting.give_back(self.client)

    def end(self) -> None:
        """Leave the place. Repeats do nothing."""
        if not self._ended:
            self._ended = True
            self.begin()
            self._places.open.give_back(self.client)
            self._places.masks.give_back(self.client, self._mask_ms)


class Account:
    """What grows for one client until it is closed; it is charged in steps, ahead of what is."""

    __slots__ = ("_bound", "_charge", "_client", "_step", "_total")

    def __init__(self, bound: Bound, client: str, step: int) -> None:
        self._bound = bound
        self._charge = Charge(bound)
        self._client = client
        self._step = step
        self._total = 0

    @property
    def amount(self) -> int:
        """The amount that is held now."""
        return self._total

    def add(self, amount: int) -> None:
        """Add an amount; RESOURCE_EXHAUSTED where the client may not hold so much."""
        self._total += amount
        if self._total > self._charge.amount:
            wanted = self._total + self._step
            if not self._charge.change(self._client, wanted):
                raise self._bound.refusal(self._client, wanted)

    def close(self) -> None:
        """Give all of it back."""
        self._total = 0
        self._charge.change(self._client, 0)


class Turns(Generic[J]):
    """Jobs that wait for a thread: the clients take turns, and the last thread is for short jobs.

    So neither many jobs of one client nor long ones of several hold up another's short job.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[tuple[bool, J]]] = OrderedDict()

    def add(self, client: str, job: J, *, long: bool) -> None:
        """Let a job wait for its client's turn."""
        self._waiting.setdefault(client, deque()).append((long, job))

    def next(self, num_free: int) -> J | None:
        """Take the job that starts next, None if none may; ``num_free`` threads have no work."""
        if num_free < 1:
            return None
        for client, jobs in self._waiting.items():
            long, job = jobs[0]
            if long and num_free == 1:
                continue
            jobs.popleft()
            del self._waiting[client]
            if jobs:
                self._waiting[client] = jobs  # behind the others
            return job
        return None
