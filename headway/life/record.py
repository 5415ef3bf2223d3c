"""The record of one request's life, the same for a live and a simulated one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.life.moments import Moment, MomentKind
from headway.life.parts import LifePart

OPEN = "open"
"""The status of a request that has not ended."""


class TokenTally(NamedTuple):
    """Tokens of a request; ``cached``: of its prompt, found in a prefix cache."""

    prompt: int
    cached: int = 0
    output: int = 0
    reasoning: int = 0


class Crowd(NamedTuple):
    """The requests before one at its gateway, when it came.

    ``num_ahead``: those without a first token, with ``tokens_ahead`` of prompt. ``rate``: requests
    per second in the last second; ``usual_rate``: in the last minute.
    """

    num_ahead: int = 0
    tokens_ahead: int = 0
    rate: float = 0.0
    usual_rate: float = 0.0

    @property
    def is_burst(self) -> bool:
        """True if requests came at twice the usual rate, and several waited."""
        return self.num_ahead >= 3 and self.rate >= 2.0 * self.usual_rate


class Instants(NamedTuple):
    """When a client saw what, in microseconds after the arrival; None for what has not happened."""

    first_token: int | None = None
    first_answer: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """The life of a request: all instants are whole microseconds after ``arrival_at``."""

    request_id: str
    gateway_id: str
    model: str
    arrival_at: float
    """Seconds since the epoch by the gateway's clock; virtual seconds if simulated."""
    status: str
    """``open``, or how it ended: ``stop``, ``length``, ``cancelled``, or the code of an error."""
    error: str
    """The error in words; "" without one."""
    tenant: str
    service_class: str
    is_read: bool
    """True if its client reads the answer as it comes."""
    tokens: TokenTally
    crowd: Crowd
    instants: Instants
    moments: tuple[Moment, ...]
    """In order of time."""
    parts: tuple[LifePart, ...]
    """Without gaps, from the arrival to the end, or to the look at a request that is open."""
    num_dropped: int = 0
    """Moments beyond the most that are kept of one request."""
    session_id: str = ""
    """Its client's name for its conversation; "" without one."""
    turn: int = 0
    """The number of its turn there, from 1, by its gateway's count; 0 without a session."""

    @property
    def total(self) -> int:
        """Its whole length so far, in microseconds: the sum of its parts."""
        return self.parts[-1].end if self.parts else 0

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that had it, in order, each once in a row."""
        workers: list[str] = []
        for part in self.parts:
            if part.worker_id and part.worker_id not in workers[-1:]:
                workers.append(part.worker_id)
        return tuple(workers)

    @property
    def ttft(self) -> float | None:
        """Arrival to first token, in seconds."""
        return _seconds(self.instants.first_token)

    @property
    def ttfat(self) -> float | None:
        """Arrival to first answering token, in seconds."""
        return _seconds(self.instants.first_answer)

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds; None for fewer than two."""
        first, end = self.instants.first_token, self.instants.end
        if first is None or end is None or self.tokens.output < 2:
            return None
        return (end - first) / 1e6 / (self.tokens.output - 1)

    def find(self, kind: MomentKind) -> list[Moment]:
        """Return its moments of a kind, in order."""
        return [moment for moment in self.moments if moment.kind is kind]


class CallLives(NamedTuple):
    """The lives of one call's outputs, in their order; ``num_older``: earlier calls of its id."""

    outputs: Sequence[LifeRecord] = ()
    num_older: int = 0


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
