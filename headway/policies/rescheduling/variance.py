"""STAR's Algorithm 1: move the request whose move lowers the variance of loads the most.

``σ² = Σ_h β_h · Var_i(L_i[h])`` over units i and steps h = 0 (now) … H. Moving a request with
trace τ from s to t changes it by ``(2/n) · Σ_h β_h · τ_h · (L_t[h] − L_s[h] + τ_h)``. A trace is
``N(r) + t_h`` up to its last step and 0 after, so running sums of β·L and β·t·L turn that into a
look-up: no trace is ever written out. Candidates are tried in order of what they could gain at
the least loads of all targets, which only falls as targets fill: the best is found among the
first few.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.policies.rescheduling.loads import futures, last_steps
from headway.policies.rescheduling.protocol import Floats, Horizon, Ints, Move, UnitReport
from headway.request import StreamKey

_CHUNK = 64
"""Candidates that are looked at together."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What tells one variant of the algorithm from another.

    ``weights``: β, (H + 1,), their sum 1. ``theta``: slack around the mean. ``least_remaining``:
    C_mig / T_exec, tokens. ``floor``: the least drop of σ², as a share of a unit's part of it.
    ``units_per_move``: at most one move for so many units.
    """

    weights: Floats
    horizon: Horizon
    theta: float
    least_remaining: float
    floor: float
    units_per_move: int


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
        self._limit = (1 + rule.theta) * float(np.mean(self._loads @ rule.weights))
        self._capacity = np.array([unit.capacity_tokens for unit in units])
        over = self._loads @ rule.weights > self._limit
        accepts = np.array([unit.accepts for unit in units])
        self._is_target = accepts & ~over & (self._loads[:, 0] < self._limit)
        self._is_source = over
        variance = float(np.var(self._loads, axis=0) @ rule.weights)
        self._floor = rule.floor * variance / 2  # as gains are, without their factor 2/n
        self._sum()
        self._gather(np.flatnonzero(over))

    def _sum(self) -> None:
        """Running sums over the steps, (n, H + 1)."""
        weighted = self._loads * self._rule.weights
        self._flat = np.cumsum(weighted, axis=1)
        self._sloped = np.cumsum(weighted * self._steps, axis=1)

    def _gather(self, sources: NDArray[np.intp]) -> None:
        """Who could move at all, most promising first."""
        requests = [self._units[i].requests for i in sources]
        sizes = [len(r.keys) for r in requests]
        tokens = np.concatenate([np.empty(0, np.int64), *(r.num_tokens for r in requests)])
        remaining = np.concatenate([np.empty(0), *(r.remaining for r in requests)])
        source = np.repeat(sources, sizes)
        place = np.arange(len(source)) - np.repeat(np.cumsum([0, *sizes])[:-1], sizes)
        is_known = remaining >= 0
        stays = is_known & (remaining <= self._rule.least_remaining)
        last = last_steps(remaining, len(self._rule.weights) - 1, self._rule.horizon)
        slope = is_known.astype(np.float64)  # what nothing is known of does not grow
        square = self._squares(tokens, last, slope)
        bound = self._gains_at_best(source, tokens, last, slope, square)
        kept = np.flatnonzero(~stays & (bound > self._floor))
        self._bound, self._source, self._place = bound[kept], source[kept], place[kept]
        self._tokens, self._last, self._slope = tokens[kept] * 1.0, last[kept], slope[kept]
        self._final = self._tokens + np.where(is_known, remaining, 0.0)[kept]
        self._square = square[kept]
        self._aim(np.flatnonzero(self._is_target))
        self._column = np.full(len(kept), -1)
        self._is_gone = np.zeros(len(kept), dtype=bool)
        self._is_exact = np.full(len(kept), len(self._targets) == 0)

    def _aim(self, targets: NDArray[np.intp]) -> None:
        """The targets' columns: running sums (H + 1, T), free tokens (T,), pairs used (n, T)."""
        self._targets = targets
        self._flat_to = np.ascontiguousarray(self._flat[targets].T)
        self._sloped_to = np.ascontiguousarray(self._sloped[targets].T)
        self._room = self._capacity[targets] - self._loads[targets, 0]
        self._used = np.zeros((len(self._units), len(targets)), dtype=bool)  # one move a pair

    def _squares(self, tokens: Ints, last: NDArray[np.intp], slope: Floats) -> Floats:
        """``Σ_h β_h · τ_h²``."""
        weights, steps = self._rule.weights, self._steps
        flat, sloped = np.cumsum(weights), np.cumsum(weights * steps)
        squared = np.cumsum(weights * steps * steps)
        return np.asarray(
            tokens * (tokens * flat[last] + 2 * slope * sloped[last]) + slope * squared[last]
        )

    def _gains_at_best(
        self,
        source: NDArray[np.intp],
        tokens: Ints,
        last: NDArray[np.intp],
        slope: Floats,
        square: Floats,
    ) -> Floats:
        """Upper bounds of the n/2-fold drops of σ²: at the least load of any target."""
        if not self._is_target.any():
            return np.zeros(len(source))
        least = self._loads[self._is_target].min(axis=0) * self._rule.weights
        flat, sloped = np.cumsum(least), np.cumsum(least * self._steps)
        drop = tokens * (self._flat[source, last] - flat[last])
        drop += slope * (self._sloped[source, last] - sloped[last])
        return np.asarray(drop - square)

    # --- one move ---------------------------------------------------------------------

    def next_move(self) -> Move | None:
        """The best move left, done in the loads; None where none is worth it.

        Moves only lower what the others would gain, so that a gain found earlier is a bound, too:
        only the most promising candidates are looked at again.
        """
        while len(self._bound):
            row = int(self._bound.argmax())
            if self._bound[row] <= self._floor:
                return None
            if not self._is_exact[row]:
                self._look_at(self._most_promising())
                continue
            equals = np.flatnonzero(self._bound == self._bound[row]).tolist()
            if len(equals) > 1:
                stale = [other for other in equals if not self._is_exact[other]]
                if stale:
                    self._look_at(np.array(stale))
                    continue
                row = min(equals, key=self._key)
            if self._key(row) not in self._resting:
                return self._do(row)
            self._drop(np.array([row]))
        return None

    def _drop(self, rows: NDArray[np.intp]) -> None:
        """They are candidates no more."""
        self._is_gone[rows] = True
        self._bound[rows] = -np.inf

    def _most_promising(self) -> NDArray[np.intp]:
        """A few candidates with the greatest bounds that are not exact."""
        bounds = np.where(self._is_exact, -np.inf, self._bound)
        if len(bounds) <= _CHUNK:
            return np.flatnonzero(~self._is_exact)
        return np.argpartition(bounds, -_CHUNK)[-_CHUNK:]

    def _look_at(self, rows: NDArray[np.intp]) -> None:
        """Their best targets and drops of σ², as the loads are now."""
        gains = self._exact(rows)
        columns = gains.argmax(axis=1)
        self._column[rows] = columns
        found = gains[np.arange(len(rows)), columns]
        self._bound[rows] = np.where(self._is_gone[rows], -np.inf, found)
        self._is_exact[rows] = True

    def _exact(self, rows: NDArray[np.intp]) -> Floats:
        """The n/2-fold drop of σ² of candidates on all targets, -inf where they must not go."""
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
        source, column = int(self._source[candidate]), int(self._column[candidate])
        target = int(self._targets[column])
        alive = slice(0, int(self._last[candidate]) + 1)
        trace = np.zeros(len(self._steps))
        trace[alive] = self._tokens[candidate] + self._slope[candidate] * self._steps[alive]
        self._loads[source] -= trace
        self._loads[target] += trace
        for unit in (source, target):
            weighted = self._loads[unit] * self._rule.weights
            self._flat[unit] = np.cumsum(weighted)
            self._sloped[unit] = np.cumsum(weighted * self._steps)
        self._flat_to[:, column], self._sloped_to[:, column] = (
            self._flat[target],
            self._sloped[target],
        )
        self._used[source, column] = True
        self._is_source[source] = self._loads[source] @ self._rule.weights > self._limit
        is_open = self._loads[target, 0] < self._limit
        self._room[column] = self._capacity[target] - self._loads[target, 0] if is_open else -1
        gain = 2 / len(self._units) * float(self._bound[candidate])
        self._is_exact &= (self._source != source) & (self._column != column)
        self._drop(np.array([candidate]))
        if not self._is_source[source]:
            self._drop(np.flatnonzero(self._source == source))
        units = self._units
        return Move(self._key(candidate), units[source].unit, units[target].unit, gain)
