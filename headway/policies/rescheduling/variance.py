"""STAR's Algorithm 1: move the request whose move lowers the variance of loads the most.

``σ² = Σ_h β_h · Var_i(L_i[h])`` over units i and steps h = 0 (now) … H. Moving a request with
trace τ from s to t changes it by ``(2/n) · Σ_h β_h · τ_h · (L_t[h] − L_s[h] + τ_h)``. A trace is
``N(r) + t_h`` up to its last step and 0 after, so running sums of β·L and β·t·L turn that into a
look-up: no trace is ever written out. No target gives more than one with the least running sums
of all would. Candidates are sorted by that bound. What one gains only falls as others move, so
that an old gain is a bound, too: only those at the front are ever looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from headway.policies.rescheduling.loads import futures, last_steps
from headway.policies.rescheduling.protocol import Floats, Horizon, Move, UnitReport
from headway.request import StreamKey

_CHUNK = 256
"""Candidates that come to the front together."""

_NUM_EXACT = 16
"""Candidates at the front whose gains on all targets are found together."""

_EQUAL = 1 - 1e-9
"""Gains that differ by less than this are equal: their ids decide, not a rounding error."""

_CLOSED = 1e200
"""The running sums of a target that takes no more."""

_NOISE = 1e-12
"""A drop of σ² below this share of the greatest load's square is a rounding error."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The parameters of one variant of the algorithm.

    ``weights``: β, (H + 1,), their sum 1. ``theta``: slack around the mean. ``least_remaining``:
    C_mig / T_exec, tokens, of a unit whose T_exec is unknown; of the others it follows from the
    request's KV over ``link_bytes_per_s``. ``floor``: the least drop of σ², as a share of a
    unit's part of it. ``units_per_move``: at most one move for so many units.
    """

    weights: Floats
    horizon: Horizon
    theta: float
    least_remaining: float
    floor: float
    units_per_move: int
    link_bytes_per_s: float = inf


def best_moves(
    rule: Rule, units: Sequence[UnitReport], resting: Collection[StreamKey]
) -> list[Move]:
    """Moves one after the other, each the best once those before it are done."""
    if len(units) < 2:
        return []
    search = _Search(rule, units, resting)
    most = -(-len(units) // rule.units_per_move)
    moves: list[Move] = []
    while len(moves) < most and (move := search.next_move()) is not None:
        moves.append(move)
    return moves


class _Search:
    """Loads (n, H + 1) and the candidates' arrays, (C,) each, kept up as moves are chosen."""

    def __init__(
        self, rule: Rule, units: Sequence[UnitReport], resting: Collection[StreamKey]
    ) -> None:
        self._rule = rule
        self._units = units
        self._resting = resting
        self._steps = rule.horizon.step_tokens * np.arange(len(rule.weights), dtype=np.float64)
        self._loads = np.empty((len(units), len(rule.weights)))
        self._loads[:, 0] = [unit.num_tokens for unit in units]
        self._loads[:, 1:] = futures(units, len(rule.weights) - 1, rule.horizon)
        weighted = self._loads @ rule.weights
        self._limit = (1 + rule.theta) * float(np.mean(weighted))
        over = weighted > self._limit
        self._floor = self._least_gain()
        self._sum()
        self._aim(~over & (self._loads[:, 0] < self._limit))
        self._gather(np.flatnonzero(over))

    def _least_gain(self) -> float:
        """Return the least gain of a move, without the factor 2/n, as all gains here."""
        variance = float(np.var(self._loads, axis=0) @ self._rule.weights)
        return max(self._rule.floor * variance / 2, _NOISE * float(self._loads.max()) ** 2)

    def _sum(self) -> None:
        """Running sums over the steps, (n, H + 1)."""
        weighted = self._loads * self._rule.weights
        self._flat = np.cumsum(weighted, axis=1)
        self._sloped = np.cumsum(weighted * self._steps, axis=1)

    def _aim(self, is_underloaded: NDArray[np.bool_]) -> None:
        """The targets' columns: running sums (H + 1, T), free tokens (T,), pairs used (n, T)."""
        accepts = np.array([unit.accepts for unit in self._units])
        self._targets = np.flatnonzero(is_underloaded & accepts)
        self._flat_to = np.ascontiguousarray(self._flat[self._targets].T)
        self._sloped_to = np.ascontiguousarray(self._sloped[self._targets].T)
        capacity = np.array([unit.capacity_tokens for unit in self._units])
        self._room = (capacity - self._loads[:, 0])[self._targets]
        self._used = np.zeros((len(self._units), len(self._targets)), dtype=bool)

    def _gather(self, sources: NDArray[np.intp]) -> None:
        """Gather the requests that could move at all, most promising first."""
        requests = [self._units[i].requests for i in sources.tolist()]
        sizes = [len(r.keys) for r in requests]
        tokens = np.concatenate([np.empty(0), *(r.num_tokens for r in requests)])
        remaining = np.concatenate([np.empty(0), *(r.remaining for r in requests)])
        source = np.repeat(sources, sizes)
        place = np.arange(len(source)) - np.repeat(np.cumsum([0, *sizes])[:-1], sizes)
        is_known = remaining >= 0
        final = tokens + np.where(is_known, remaining, 0.0)
        stays = is_known & (remaining <= self._migration_passes(source, tokens))
        stays |= final > self._room.max(initial=-np.inf)
        last = last_steps(remaining, len(self._rule.weights) - 1, self._rule.horizon)
        slope = is_known.astype(np.float64)  # what nothing is known of does not grow
        square = self._squares(tokens, last, slope)
        bound = self._bounds(source, tokens, last, slope) - square
        kept = np.flatnonzero(~stays & (bound > self._floor))
        kept = kept[np.argsort(-bound[kept], kind="stable")]
        self._source, self._place, self._tokens = source[kept], place[kept], tokens[kept]
        self._last, self._slope, self._final = last[kept], slope[kept], final[kept]
        self._square, self._first_bound = square[kept], bound[kept]
        self._bound = self._first_bound.copy()
        self._num_front = 0
        self._column = np.full(len(kept), -1)
        self._is_exact = np.zeros(len(kept), dtype=bool)

    def _migration_passes(self, source: NDArray[np.intp], tokens: Floats) -> Floats:
        """C_mig / T_exec of each request (line 20): passes while its KV crosses the link."""
        step_times = np.array([unit.step_time for unit in self._units])[source]
        token_bytes = np.array([unit.kv_bytes_per_token for unit in self._units])[source]
        migration = tokens * token_bytes / self._rule.link_bytes_per_s
        is_timed = (step_times > 0) & (token_bytes > 0)
        passes = migration / np.where(is_timed, step_times, 1.0)
        return np.where(is_timed, passes, self._rule.least_remaining)

    def _squares(self, tokens: Floats, last: NDArray[np.intp], slope: Floats) -> Floats:
        """``Σ_h β_h · τ_h²``."""
        weights, steps = self._rule.weights, self._steps
        flat, sloped = np.cumsum(weights), np.cumsum(weights * steps)
        squared = np.cumsum(weights * steps * steps)
        return np.asarray(
            tokens * (tokens * flat[last] + 2 * slope * sloped[last]) + slope * squared[last]
        )

    def _bounds(
        self, source: NDArray[np.intp], tokens: Floats, last: NDArray[np.intp], slope: Floats
    ) -> Floats:
        """``Σ_h β_h · τ_h · (L_s[h] − L_t[h])`` at the targets' least sums: none gives more."""
        drop = tokens * (
            self._flat[source, last] - self._flat_to.min(axis=1, initial=_CLOSED)[last]
        )
        least = self._sloped_to.min(axis=1, initial=_CLOSED)[last]
        drop += slope * (self._sloped[source, last] - least)
        return np.asarray(drop)

    # --- one move ---------------------------------------------------------------------

    def next_move(self) -> Move | None:
        """Return the best move left, done in the loads; None where none is worth it."""
        self._tighten(np.flatnonzero(~self._is_exact[: self._num_front]))
        while (row := self._most_promising()) is not None:
            if not self._is_exact[row]:
                self._look_at(self._stale(row))
            elif self._key(row) in self._resting:
                self._bound[row] = -np.inf
            else:
                return self._do(row)
        return None

    def _most_promising(self) -> int | None:
        """Return the candidate with the greatest bound; ties go to the first unit's least key."""
        best = self._bound[: self._num_front].max(initial=self._floor)
        while self._next_bound() >= best * _EQUAL:
            fresh = np.arange(len(self._bound))[self._num_front : self._num_front + _CHUNK]
            self._tighten(fresh)
            best = self._bound[fresh].max(initial=best)
            self._num_front += len(fresh)
        if best <= self._floor:
            return None
        equals = np.flatnonzero(self._bound[: self._num_front] >= best * _EQUAL)
        if len(equals) == 1:
            return int(equals[0])
        sources = self._source[equals]
        firsts: list[int] = equals[sources == sources.min()].tolist()
        return min(firsts, key=self._key)

    def _next_bound(self) -> float:
        """Return the greatest bound of those that are not at the front."""
        is_all = self._num_front == len(self._first_bound)
        return -np.inf if is_all else float(self._first_bound[self._num_front])

    def _tighten(self, rows: NDArray[np.intp]) -> None:
        """Their bounds at the targets' least sums as they are now."""
        bounds = self._bounds(
            self._source[rows], self._tokens[rows], self._last[rows], self._slope[rows]
        )
        self._bound[rows] = np.minimum(self._bound[rows], bounds - self._square[rows])

    def _stale(self, row: int) -> NDArray[np.intp]:
        """Return it and a few others at the front whose bounds may be too high, greatest first."""
        front = slice(0, self._num_front)
        stale = np.flatnonzero(~self._is_exact[front] & (self._bound[front] > self._floor))
        if len(stale) <= _NUM_EXACT:
            return stale
        most = np.argpartition(self._bound[stale], -_NUM_EXACT)[-_NUM_EXACT:]
        return np.append(stale[most], row)

    def _look_at(self, rows: NDArray[np.intp]) -> None:
        """Their best targets and drops of σ², as the loads are now."""
        gains = self._exact(rows)
        columns = (gains >= gains.max(axis=1, keepdims=True) * _EQUAL).argmax(axis=1)
        self._column[rows] = columns
        self._bound[rows] = gains[np.arange(len(rows)), columns]
        self._is_exact[rows] = True

    def _exact(self, rows: NDArray[np.intp]) -> Floats:
        """Return n/2 times the drop of σ², candidates × targets, -inf where they must not go."""
        source, last = self._source[rows], self._last[rows]
        tokens, slope = self._tokens[rows, None], self._slope[rows, None]
        gains = tokens * (self._flat[source, last][:, None] - self._flat_to[last])
        gains += slope * (self._sloped[source, last][:, None] - self._sloped_to[last])
        gains -= self._square[rows, None]
        np.copyto(gains, -np.inf, where=self._used[source] | (self._final[rows, None] > self._room))
        return np.asarray(gains)

    def _key(self, candidate: int) -> StreamKey:
        requests = self._units[int(self._source[candidate])].requests
        return requests.keys[int(self._place[candidate])]

    def _do(self, candidate: int) -> Move:
        """Move it in the loads and in the targets' columns."""
        source, column = int(self._source[candidate]), int(self._column[candidate])
        target = int(self._targets[column])
        gain = 2 / len(self._units) * float(self._bound[candidate])
        self._shift(candidate, source, target)
        is_open = self._loads[target, 0] < self._limit
        self._flat_to[:, column] = self._flat[target] if is_open else _CLOSED
        self._sloped_to[:, column] = self._sloped[target] if is_open else _CLOSED
        self._room[column] = self._units[target].capacity_tokens - self._loads[target, 0]
        self._used[source, column] = True  # one move a pair
        is_from_here = self._source == source
        self._is_exact &= ~is_from_here & (self._column != column)
        self._bound[candidate] = -np.inf
        if not self._loads[source] @ self._rule.weights > self._limit:
            self._bound[is_from_here] = -np.inf
        units = self._units
        return Move(self._key(candidate), units[source].unit, units[target].unit, gain)

    def _shift(self, candidate: int, source: int, target: int) -> None:
        """Shift a request's load from one unit to another."""
        alive = slice(0, int(self._last[candidate]) + 1)
        trace = np.zeros(len(self._steps))
        trace[alive] = self._tokens[candidate] + self._slope[candidate] * self._steps[alive]
        self._loads[source] -= trace
        self._loads[target] += trace
        for unit in (source, target):
            weighted = self._loads[unit] * self._rule.weights
            self._flat[unit] = np.cumsum(weighted)
            self._sloped[unit] = np.cumsum(weighted * self._steps)
