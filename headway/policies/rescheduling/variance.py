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
        self._pairs: set[tuple[int, int]] = set()
        variance = float(np.var(self._loads, axis=0) @ rule.weights)
        self._floor = rule.floor * variance / len(units)
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
        empty_ints, empty = np.empty(0, np.int64), np.empty(0)
        tokens = np.concatenate([empty_ints, *(r.num_tokens for r in requests)])
        remaining = np.concatenate([empty, *(r.remaining for r in requests)])
        source = np.repeat(sources, sizes)
        place = np.concatenate([empty_ints, *(np.arange(size) for size in sizes)])
        is_known = remaining >= 0
        stays = is_known & (remaining <= self._rule.least_remaining)
        last = last_steps(remaining, len(self._rule.weights) - 1, self._rule.horizon)
        slope = np.where(is_known, 1.0, 0.0)  # what nothing is known of does not grow
        gain = self._gains_at_best(source, tokens, last, slope)
        kept = np.flatnonzero(~stays & (gain > self._floor))
        kept = kept[np.argsort(-gain[kept], kind="stable")]
        self._gain_at_best, self._source, self._place = gain[kept], source[kept], place[kept]
        self._tokens, self._last, self._slope = tokens[kept], last[kept], slope[kept]
        self._final = tokens[kept] + np.where(is_known, remaining, 0.0)[kept]
        self._square = self._squares(self._tokens, self._last, self._slope)
        self._is_left = np.ones(len(kept), dtype=bool)

    def _squares(self, tokens: Ints, last: NDArray[np.intp], slope: Floats) -> Floats:
        """``Σ_h β_h · τ_h²``."""
        weights, steps = self._rule.weights, self._steps
        flat, sloped = np.cumsum(weights), np.cumsum(weights * steps)
        squared = np.cumsum(weights * steps * steps)
        return np.asarray(
            tokens * (tokens * flat[last] + 2 * slope * sloped[last]) + slope * squared[last]
        )

    def _gains_at_best(
        self, source: NDArray[np.intp], tokens: Ints, last: NDArray[np.intp], slope: Floats
    ) -> Floats:
        """An upper bound of each candidate's drop of σ²: at the least load of any target."""
        if not self._is_target.any():
            return np.zeros(len(source))
        least = self._loads[self._is_target].min(axis=0) * self._rule.weights
        flat, sloped = np.cumsum(least), np.cumsum(least * self._steps)
        drop = tokens * (self._flat[source, last] - flat[last])
        drop += slope * (self._sloped[source, last] - sloped[last])
        drop -= self._squares(tokens, last, slope)
        return np.asarray(2 / len(self._units) * drop)

    # --- one move ---------------------------------------------------------------------

    def next_move(self) -> Move | None:
        """The best move left, done in the loads; None where none is worth it."""
        best: tuple[float, int, int] | None = None
        left = np.flatnonzero(self._is_left)
        for start in range(0, len(left), _CHUNK):
            chunk = left[start : start + _CHUNK]
            if best is not None and self._gain_at_best[chunk[0]] <= best[0]:
                break
            found = self._best_of(chunk)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        return None if best is None else self._do(*best)

    def _best_of(self, chunk: NDArray[np.intp]) -> tuple[float, int, int] | None:
        """Drop, candidate and target."""
        targets = np.flatnonzero(self._is_target)
        if not len(targets):
            return None
        gains = self._gains(chunk, targets)
        best = float(gains.max())
        while best > self._floor:
            rows, columns = np.nonzero(gains == best)
            found = [
                (self._key(chunk[r]), int(c), int(r)) for r, c in zip(rows, columns, strict=True)
            ]
            _, column, row = min(found)
            if self._key(chunk[row]) not in self._resting:
                return best, int(chunk[row]), int(targets[column])
            self._is_left[chunk[row]] = False
            gains[row] = -np.inf
            best = float(gains.max())
        return None

    def _gains(self, chunk: NDArray[np.intp], targets: NDArray[np.intp]) -> Floats:
        """The exact drop of σ² of every candidate to every target, -inf where it must not go."""
        source, last = self._source[chunk], self._last[chunk]
        tokens, slope = self._tokens[chunk, None], self._slope[chunk, None]
        flat = self._flat[source, last][:, None] - self._flat[targets][:, last].T
        sloped = self._sloped[source, last][:, None] - self._sloped[targets][:, last].T
        gains = tokens * flat + slope * sloped - self._square[chunk, None]
        gains *= 2 / len(self._units)
        fits = self._loads[targets, 0] + self._final[chunk, None] <= self._capacity[targets]
        gains[~fits] = -np.inf
        for from_, to in self._pairs:
            gains[np.ix_(source == from_, targets == to)] = -np.inf
        return np.asarray(gains)

    def _key(self, candidate: int) -> StreamKey:
        requests = self._units[int(self._source[candidate])].requests
        return requests.keys[int(self._place[candidate])]

    def _do(self, gain: float, candidate: int, target: int) -> Move:
        source, last = int(self._source[candidate]), int(self._last[candidate])
        trace = np.zeros(len(self._steps))
        alive = slice(0, last + 1)
        trace[alive] = self._tokens[candidate] + self._slope[candidate] * self._steps[alive]
        self._loads[source] -= trace
        self._loads[target] += trace
        for unit in (source, target):
            weighted = self._loads[unit] * self._rule.weights
            self._flat[unit] = np.cumsum(weighted)
            self._sloped[unit] = np.cumsum(weighted * self._steps)
        self._pairs.add((source, target))
        self._is_left[candidate] = False
        if self._loads[source] @ self._rule.weights <= self._limit:
            self._is_left[self._source == source] = False
        if self._loads[target, 0] >= self._limit:
            self._is_target[target] = False
        units = self._units
        return Move(self._key(candidate), units[source].unit, units[target].unit, gain)
