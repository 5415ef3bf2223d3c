"""Dispatches until a load report includes them, with sums that are kept up: thousands may fly."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headway.request import StreamKey


@dataclass(slots=True)
class FlyingDispatch:
    """A dispatch until a load report includes it: tokens, KV blocks and requests per unit.

    It counts as U_flight until ``accepted``, then as R_queued. ``lapsed``: the watchdog has reset
    its tokens; its blocks still count, because it may yet arrive.
    """

    sent_at: float
    keys: frozenset[StreamKey]
    tokens: dict[int, int]
    blocks: dict[int, int]
    accepted: bool = False
    lapsed: bool = False


@dataclass(slots=True)
class UnitFlights:
    """Sums of what flies to one unit; ``tokens``: of those that have not lapsed."""

    blocks: int = 0
    tokens: int = 0
    accepted_tokens: int = 0
    """Tokens of ``tokens`` that are acknowledged: R_queued."""


class Flights:
    """The flights of one worker; ``num_tokens``: of all of them, lapsed ones included."""

    def __init__(self, num_units: int) -> None:
        self.units = [UnitFlights() for _ in range(num_units)]
        self.num_tokens = 0
        self._flights: dict[int, FlyingDispatch] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, dispatch_id: int, flight: FlyingDispatch) -> None:
        """Count a dispatch."""
        self._flights[dispatch_id] = flight
        self._count(flight, 1)

    def accept(self, dispatch_id: int) -> FlyingDispatch | None:
        """Turn a dispatch's U_flight into R_queued; return it, None if late or repeated."""
        flight = self._flights.get(dispatch_id)
        if flight is None or flight.accepted:
            return None
        self._count(flight, -1)
        flight.accepted = True
        self._count(flight, 1)
        return flight

    def lapse(self) -> None:
        """Count no tokens of what flies now."""
        for flight in self._flights.values():
            self._count(flight, -1)
            flight.lapsed = True
            self._count(flight, 1)

    def forget_accepted(self) -> None:
        """Forget what is acknowledged: a report includes it."""
        for dispatch_id, flight in list(self._flights.items()):
            if flight.accepted:
                self._count(self._flights.pop(dispatch_id), -1)

    def take_back(self, key: StreamKey, unit: int, num_tokens: int) -> bool:
        """Take a request's tokens off its flight; return False if it flies no more."""
        flight = next((f for f in self._flights.values() if key in f.keys), None)
        if flight is None:
            return False
        self._count(flight, -1)
        flight.tokens[unit] = max(0, flight.tokens[unit] - num_tokens)
        self._count(flight, 1)
        return True

    @property
    def not_taken(self) -> Collection[StreamKey]:
        """The requests whose dispatch awaits its acknowledgement."""
        flying = (flight for flight in self._flights.values() if not flight.accepted)
        return {key for flight in flying for key in flight.keys}

    def _count(self, flight: FlyingDispatch, sign: int) -> None:
        for unit, num_blocks in flight.blocks.items():
            sums, num_tokens = self.units[unit], sign * flight.tokens[unit]
            sums.blocks += sign * num_blocks
            self.num_tokens += num_tokens
            if not flight.lapsed:
                sums.tokens += num_tokens
                sums.accepted_tokens += num_tokens if flight.accepted else 0
