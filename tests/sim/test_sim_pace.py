"""A machine that is not always as fast: its measured pace, replayed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role
from headway.errors import HeadwayError
from headway.sim.cluster import ClusterSpec, SimRequest
from headway.sim.pace import MeasuredPace
from tests.fakes.sim_clusters import close, disaggregated, instance, poisson, run

times = st.lists(st.tuples(st.floats(1e-3, 0.1), st.floats(1e-3, 1.0)), min_size=1, max_size=20)


@given(times, st.lists(st.floats(1e-4, 0.5), min_size=1, max_size=20), st.floats(0, 1))
def test_passes_in_a_row_take_what_one_of_all_their_work_takes(
    measured: list[tuple[float, float]], works: list[float], start: float
) -> None:
    work, seconds = zip(*measured, strict=True)
    pace = MeasuredPace(work, seconds, start)
    one_by_one, at_once = pace.replay(), pace.replay()
    taken = [one_by_one(work) for work in works]
    assert all(seconds > 0 for seconds in taken)
    assert sum(taken) == pytest.approx(at_once(sum(works)), rel=1e-6, abs=1e-9)


@given(times, st.floats(0, 1), st.floats(0, 1))
def test_all_of_the_curve_is_as_fast_as_the_model(
    measured: list[tuple[float, float]], start: float, at: float
) -> None:
    work, seconds = zip(*measured, strict=True)
    assert MeasuredPace(work, seconds, start).replay(at)(sum(work)) == pytest.approx(sum(work))


def test_the_measured_passes_come_again() -> None:
    take = MeasuredPace([1.0, 1.0, 2.0], [0.5, 2.5, 1.0]).replay()
    assert [take(1.0), take(1.0), take(2.0), take(1.0)] == pytest.approx([0.5, 2.5, 1.0, 0.5])


def test_a_long_pass_meets_more_interruptions_and_not_longer_ones() -> None:
    pace = MeasuredPace([1.0] * 10, [1.0] * 9 + [11.0])
    assert pace.replay(0.75)(3.0) < 3 * max(pace.replay(k / 10)(1.0) for k in range(10))


@pytest.mark.parametrize(
    ("work", "seconds"), [([], []), ([1.0], []), ([0.0], [1.0]), ([1.0], [float("inf")])]
)
def test_what_are_no_times_are_refused(work: list[float], seconds: list[float]) -> None:
    with pytest.raises(HeadwayError):
        MeasuredPace(work, seconds)


def test_an_even_pace_changes_nothing() -> None:
    requests = poisson(40, 6.0, 1)
    even = replace(disaggregated(), pace=MeasuredPace([0.01] * 5, [0.01] * 5))
    close(run(even, requests)[0], run(disaggregated(), requests)[0])


def test_a_slow_stretch_delays_who_runs_in_it() -> None:
    spec = ClusterSpec(((instance(Role.UNIFIED), 1),))
    slow = replace(spec, pace=MeasuredPace([0.1] * 10, [0.05] * 8 + [0.3] * 2, start=0.8))
    request = SimRequest("r", 0.5, 100, 10)
    (usual,), (delayed,) = run(spec, [request])[0], run(slow, [request])[0]
    assert delayed.num_tokens == usual.num_tokens == 10
    assert usual.ttlt is not None
    assert delayed.ttlt is not None
    assert delayed.ttlt > usual.ttlt + 0.05
