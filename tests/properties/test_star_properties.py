"""Invariants of rescheduling: the fast search is the full recomputation."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.cluster import UnitId
from headway.policies.rescheduling import Horizon, Requests, UnitReport, simulate_future
from headway.policies.rescheduling.star import step_weights
from headway.policies.rescheduling.variance import Rule, best_moves
from headway.request import StreamKey

REMAINING = st.one_of(st.just(float("nan")), st.integers(0, 3000).map(float))
REQUESTS = st.lists(st.tuples(st.integers(1, 3000), REMAINING), max_size=8)
UNITS = st.lists(
    st.tuples(REQUESTS, st.integers(4000, 30_000), st.booleans()), min_size=2, max_size=6
)
HORIZONS = st.builds(Horizon, st.integers(1, 6), st.integers(1, 400))

Floats = NDArray[np.float64]


def reports(units: list[tuple[list[tuple[int, float]], int, bool]]) -> list[UnitReport]:
    return [
        UnitReport(
            UnitId(f"w{i}", 0),
            capacity,
            Requests(
                tuple(StreamKey("g", 100 * i + r) for r in range(len(requests))),
                np.array([n for n, _ in requests], dtype=np.int64),
                np.array([left for _, left in requests], dtype=np.float64),
            ),
            sum(n for n, _ in requests),
            accepts=accepts,
        )
        for i, (requests, capacity, accepts) in enumerate(units)
    ]


def trace(num_tokens: int, remaining: float, steps: Floats) -> Floats:
    """N(r) + t while t < N̂(r); N(r) throughout where nothing is known."""
    if not remaining >= 0:
        return np.full(len(steps), float(num_tokens))
    alive = (steps == 0) | (steps < remaining)
    return np.where(alive, num_tokens + steps, 0.0)


def variance(loads: Floats, weights: Floats) -> float:
    return float(np.var(loads, axis=0) @ weights)


def best_by_scan(rule: Rule, units: list[UnitReport]) -> float:
    """The greatest drop of σ² of any allowed move, all loads recomputed; 0 without one."""
    steps = rule.horizon.step_tokens * np.arange(len(rule.weights), dtype=np.float64)
    traces = [
        [
            trace(n, left, steps)
            for n, left in zip(u.requests.num_tokens, u.requests.remaining, strict=True)
        ]
        for u in units
    ]
    loads = np.array([sum(t, np.zeros(len(steps))) for t in traces])
    weighted = loads @ rule.weights
    limit = (1 + rule.theta) * weighted.mean()
    best = 0.0
    for (s, source), (t, target) in product(enumerate(units), repeat=2):
        if not weighted[s] > limit or weighted[t] > limit or not loads[t, 0] < limit:
            continue
        if not target.accepts:
            continue
        for i, (n, left) in enumerate(
            zip(source.requests.num_tokens, source.requests.remaining, strict=True)
        ):
            grown = n + (left if left >= 0 else 0)
            if 0 <= left <= rule.least_remaining or loads[t, 0] + grown > target.capacity_tokens:
                continue
            after = loads.copy()
            after[s] -= traces[s][i]
            after[t] += traces[s][i]
            best = max(best, variance(loads, rule.weights) - variance(after, rule.weights))
    floor = rule.floor * variance(loads, rule.weights) / len(units)
    return best if best > floor else 0.0


@settings(deadline=None)
@given(
    units=UNITS,
    horizon=HORIZONS,
    theta=st.sampled_from([0.0, 0.05, 0.3]),
    least=st.sampled_from([0.0, 50.0]),
)
def test_the_first_move_has_the_gain_of_full_recomputation(
    units: list[tuple[list[tuple[int, float]], int, bool]],
    horizon: Horizon,
    theta: float,
    least: float,
) -> None:
    rule = Rule(step_weights(horizon.num_steps, 0.98), horizon, theta, least, 0.01, 8)
    given_reports = reports(units)
    found = best_moves(rule, given_reports, frozenset())
    expected = best_by_scan(rule, given_reports)
    gain = found[0].gain if found else 0.0
    assert abs(gain - expected) <= 1e-6 * max(1.0, expected)


@settings(deadline=None)
@given(units=UNITS, horizon=HORIZONS)
def test_every_move_lowers_the_variance_and_no_request_moves_twice(
    units: list[tuple[list[tuple[int, float]], int, bool]], horizon: Horizon
) -> None:
    rule = Rule(step_weights(horizon.num_steps, 0.98), horizon, 0.05, 0.0, 0.01, 1)
    found = best_moves(rule, reports(units), frozenset())
    assert all(move.gain > 0 for move in found)
    assert len({move.key for move in found}) == len(found)
    assert len({(move.source, move.target) for move in found}) == len(found)
    assert not {move.source for move in found} & {move.target for move in found}


@given(requests=REQUESTS, horizon=HORIZONS)
def test_the_simulated_future_is_the_sum_of_all_traces(
    requests: list[tuple[int, float]], horizon: Horizon
) -> None:
    steps = horizon.step_tokens * np.arange(1, horizon.num_steps + 1, dtype=np.float64)
    expected = sum((trace(n, left, steps) for n, left in requests), np.zeros(len(steps)))
    found = simulate_future([n for n, _ in requests], [left for _, left in requests], horizon)
    np.testing.assert_allclose(found, expected)


@settings(deadline=None)
@given(units=UNITS, horizon=HORIZONS)
def test_reports_that_are_simulated_ahead_decide_as_raw_ones(
    units: list[tuple[list[tuple[int, float]], int, bool]], horizon: Horizon
) -> None:
    rule = Rule(step_weights(horizon.num_steps, 0.98), horizon, 0.05, 0.0, 0.01, 2)
    raw = reports(units)
    ahead = [
        UnitReport(
            u.unit,
            u.capacity_tokens,
            u.requests,
            u.num_tokens,
            simulate_future(u.requests.num_tokens, u.requests.remaining, horizon),
            u.accepts,
        )
        for u in raw
    ]
    assert best_moves(rule, raw, frozenset()) == best_moves(rule, ahead, frozenset())
