"""TokenScale's burst detector: two signals, a running mean, and the excess only."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import SchedulerConnected, Submit
from headway.core.gateway.settings import GatewaySettings
from headway.errors import HeadwayError
from headway.policies.burst import Label
from headway.policies.burst.dual_signal import (
    DualSignal,
    DualSignalParams,
    SlidingSum,
)
from headway.policies.burst.off import Off
from headway.request import Request, SamplingParams
from tests.fakes.tokenscale import burst_ratio

FIGURE = DualSignalParams(factor=1.0, chance=0.05)
"""Ten requests ahead of the mean."""


def labels(arrivals: Sequence[tuple[float, int]], params: DualSignalParams = FIGURE) -> list[Label]:
    detector = DualSignal(params)
    return [detector.arrived(tokens, now=at) for at, tokens in arrivals]


def steady(
    rate: int, seconds: float, start: float = 0.0, tokens: int = 100
) -> list[tuple[float, int]]:
    return [(start + n / rate, tokens) for n in range(int(rate * seconds))]


def test_even_traffic_has_no_bursts() -> None:
    assert not any(label.is_burst for label in labels(steady(10, 120.0)))


def test_a_lone_request_of_the_mean_size_is_no_burst() -> None:
    assert not any(label.is_burst for label in labels([(30.0 * n, 100) for n in range(10)]))


def test_a_lone_request_is_no_burst_however_long_it_is() -> None:
    assert not any(label.is_burst for label in labels([*steady(1, 60.0), (60.0, 1_000_000)]))


def test_a_burst_of_requests_is_labelled_by_the_requests_signal() -> None:
    found = labels([*steady(10, 60.0), *steady(50, 1.0, start=60.0, tokens=100)])
    marked = [label for label in found[600:] if label.is_burst]
    assert {label.signal for label in marked} == {"requests"}
    assert all(label.ahead > label.allowed for label in marked)


def test_a_burst_of_tokens_is_labelled_though_requests_are_few() -> None:
    found = labels([*steady(10, 60.0), *steady(10, 1.0, start=60.0, tokens=5000)])
    marked = [label for label in found[600:] if label.is_burst]
    assert marked
    assert {label.signal for label in marked} == {"tokens"}


def test_only_the_excess_is_labelled_not_all_that_arrives_meanwhile() -> None:
    found = labels([*steady(10, 60.0), *steady(30, 10.0, start=60.0)])
    meanwhile = found[600:]
    regular = sum(not label.is_burst for label in meanwhile)
    # The mean rises from 10 to 13 and a bit while the burst lasts: that much goes on as regular,
    # and ten requests of the depth.
    assert 110 <= regular <= 145


def test_a_burst_is_labelled_from_the_first_request_beyond_the_depth() -> None:
    found = labels([*steady(10, 60.0), *[(60.0, 100)] * 20])[600:]
    assert [label.is_burst for label in found] == [False] * 11 + [True] * 9
    assert found[-1].ahead == found[11].ahead > found[-1].allowed == FIGURE.depth


def test_the_depth_follows_what_may_be_labelled_by_chance() -> None:
    assert DualSignalParams(factor=1.0, chance=0.05).depth == pytest.approx(10.0)
    assert DualSignalParams(factor=1.0 + 1e-6, chance=0.05).depth == pytest.approx(10.0, rel=1e-3)
    depths = [DualSignalParams(chance=chance).depth for chance in (0.001, 0.01, 0.05, 0.5)]
    assert depths == sorted(depths, reverse=True)
    assert depths[1] == pytest.approx(3.93, abs=0.01)
    assert DualSignalParams(factor=100.0).depth == depths[-1] == 3.0


def test_sizes_that_differ_widely_take_more_tokens_to_be_a_burst() -> None:
    sizes = [10] * 9 + [910]  # 100 in the mean
    mixed = [(n / 10, sizes[n % 10]) for n in range(600)]
    even, uneven = (
        labels([*before, *[(60.0, 1000)] * 12])[600:] for before in (steady(10, 60.0), mixed)
    )
    assert sum(label.is_burst for label in uneven) < sum(label.is_burst for label in even)


def test_a_factor_of_one_marks_what_is_above_the_mean_and_more_marks_less() -> None:
    arrivals = [*steady(10, 60.0), *steady(30, 10.0, start=60.0)]
    shares = [burst_ratio(arrivals, DualSignalParams(factor=f)) for f in (1.0, 1.5, 2.0, 3.0)]
    assert shares[1:] == sorted(shares[1:], reverse=True)
    assert shares[1] > 0.1
    assert shares[-1] == 0.0


def test_the_live_factor_is_one_and_a_half() -> None:
    assert DualSignalParams().factor == 1.5
    assert (DualSignalParams().chance, DualSignalParams().mean_window) == (0.01, 60.0)


def test_the_mean_runs_over_60_seconds_then_a_new_level_is_the_mean() -> None:
    found = labels([*steady(10, 60.0), *steady(30, 120.0, start=60.0)])
    assert any(label.is_burst for label in found[600:1200])
    assert not any(label.is_burst for label in found[-1200:])


def test_the_first_request_ever_is_no_burst() -> None:
    assert not labels([(1.7e9, 100_000)])[0].is_burst


def test_what_comes_in_the_first_second_is_no_burst() -> None:
    assert not any(label.is_burst for label in labels([(1.7e9, 100)] * 100))


def test_sparse_traffic_has_a_mean_of_thirty_requests_for_ten_minutes_at_most() -> None:
    window = SlidingSum(60.0)
    for number in range(100):
        window.add(10, now=6.0 * number)
        window.forget(now=6.0 * number)
    assert (window.num_requests, window.num_tokens, window.num_squares) == (30, 300, 3000)
    assert window.span(now=594.0) == pytest.approx(29 * 6.0)
    window.forget(now=594.0 + 599.0)
    assert window.num_requests == 1
    window.forget(now=594.0 + 600.0)
    assert (window.num_requests, window.num_squares) == (0, 0)


def test_a_clock_that_goes_back_stands_still() -> None:
    detector = DualSignal()
    for at in (100.0, 50.0, 100.0, 101.0):
        assert not detector.arrived(10, now=at).is_burst


def test_what_is_kept_does_not_grow_with_the_rate() -> None:
    window = SlidingSum(60.0)
    for number in range(300_000):
        window.add(1, now=number / 2000)
        window.forget(now=number / 2000)
    assert window.num_kept <= 65_536
    assert window.num_requests == pytest.approx(120_000, rel=0.1)


def test_the_burst_ratio_is_the_share_of_tokens_that_is_labelled() -> None:
    assert burst_ratio([], FIGURE) == 0.0
    arrivals = [*steady(10, 60.0), *steady(40, 2.0, start=60.0)]
    marked = sum(label.is_burst for label in labels(arrivals))
    assert burst_ratio(arrivals, FIGURE) == pytest.approx(marked / len(arrivals))


def test_off_labels_nothing() -> None:
    policy = Off()
    assert not any(policy.arrived(10_000, now=0.0).is_burst for _ in range(1000))


def test_the_gateway_labels_requests_as_they_arrive() -> None:
    settings = GatewaySettings(
        10_000, burst="dual-signal", burst_params={"factor": 1.0, "chance": 0.05}
    )
    gateway = GatewayCore("g", "g:1", settings)
    gateway.handle(SchedulerConnected(), now=0.0)
    seen: list[Request] = []
    for number, (at, tokens) in enumerate([*steady(10, 60.0), *steady(40, 1.0, start=60.0)]):
        submit = Submit(Request(f"r{number}", "m", (1,) * tokens, SamplingParams(), at))
        seen += [a for a in gateway.handle(submit, now=at) if isinstance(a, Request)]
    assert not any(request.is_burst for request in seen[:600])
    assert sum(request.is_burst for request in seen[600:]) == pytest.approx(20, abs=4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("chance", 0.0), ("mean_window", 0.5), ("factor", 0.9), ("factor", float("nan"))],
)
def test_a_parameter_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(HeadwayError, match=name):
        DualSignalParams(**{name: value})
