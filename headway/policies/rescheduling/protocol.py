"""The input and the output of a rescheduling policy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headway.bounds import Bounded, between
from headway.cluster import UnitId
from headway.request import StreamKey

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Horizon(Bounded):
    """The horizon of simulated loads: ``num_steps`` (H) of ``step_tokens`` tokens each."""

    num_steps: int = between(1, 4096, default=16)
    step_tokens: int = between(1, 1_000_000, default=128)


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Running requests in parallel arrays, (R,) each.

    ``num_tokens``: N(r), tokens in the batch. ``remaining``: N̂(r), tokens to come; NaN or
    negative where nothing is known, which counts as the current load only.
    """

    keys: Sequence[StreamKey]
    num_tokens: Ints
    remaining: Floats


@dataclass(frozen=True, slots=True, eq=False)
class UnitReport:
    """A DP unit at one instant, tokens.

    ``future``: the pre-simulated load after 1 … H steps, (H,), or empty where the worker sent
    none. ``num_tokens``: N_i, the current load. ``accepts``: whether it may be a target.
    ``step_time``: T_exec, seconds of a decode step, 0 where unknown. ``kv_bytes_per_token``: what
    a move has to carry.
    """

    unit: UnitId
    capacity_tokens: int
    requests: Requests
    num_tokens: int
    future: Floats = field(default_factory=lambda: np.empty(0))
    accepts: bool = True
    step_time: float = 0.0
    kv_bytes_per_token: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A request that is to go on elsewhere; ``gain``: the drop of σ², tokens squared."""

    key: StreamKey
    source: UnitId
    target: UnitId
    gain: float


class Rescheduling(Protocol):
    """Which running requests move, and where to?"""

    @property
    def interval(self) -> float:
        """Seconds between decisions; inf for none at all."""

    @property
    def rest(self) -> float:
        """Seconds that a request stays where it has been moved to."""

    @property
    def horizon(self) -> Horizon:
        """The horizon that workers simulate ahead."""

    @property
    def reads_lengths(self) -> bool:
        """True if it reads remaining lengths; else none are predicted for it."""

    def moves(
        self, units: Sequence[UnitReport], resting: Collection[StreamKey], *, now: float
    ) -> list[Move]:
        """Best first; ``resting`` are not moved. Units come in the order of their ids."""


def yielding_first(
    policy: Rescheduling,
    units: Sequence[UnitReport],
    resting: Collection[StreamKey],
    yielding: Collection[StreamKey],
    *,
    now: float,
) -> list[Move]:
    """Return the policy's moves of requests that yield by their class; if there are none, of all.

    A move interrupts a request, so those go first whom nobody waits for. Either list stands alone:
    its first move is between units that have just reported, so the scheduler makes at least that
    one. Where others help more, a later interval moves them.
    """
    if yielding:
        keys = (key for unit in units for key in unit.requests.keys)
        others = {key for key in keys if key not in yielding}
        if moves := policy.moves(units, others.union(resting), now=now):
            return moves
    return policy.moves(units, resting, now=now)
