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
    burst_ratio,
)
from headway.policies.burst.off import Off
from headway.request import Request, SamplingParams

FIGURE = DualSignalParams(factor=1.0)


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


def test_a_burst_of_requests_is_labelled_by_the_requests_signal() -> None:
    found = labels([*steady(10, 60.0), *steady(50, 1.0, start=60.0, tokens=100)])
    marked = [label for label in found[600:] if label.is_burst]
    assert {label.signal for label in marked} == {"requests"}
    assert all(label.rate > label.allowed for label in marked)


def test_a_burst_of_tokens_is_labelled_though_requests_are_few() -> None:
    found = labels([*steady(10, 60.0), *steady(10, 1.0, start=60.0, tokens=5000)])
    marked = [label for label in found[600:] if label.is_burst]
    assert marked
    assert {label.signal for label in marked} == {"tokens"}


def test_only_the_excess_is_labelled_not_all_that_arrives_meanwhile() -> None:
    found = labels([*steady(10, 60.0), *steady(30, 10.0, start=60.0)])
    meanwhile = found[600:]
    regular = sum(not label.is_burst for label in meanwhile)
    # The mean rises from 10 to 13 and a bit while the burst lasts: that much goes on as regular.
    assert 100 <= regular <= 140
    assert meanwhile[-1].allowed == pytest.approx(13.3, abs=0.5)


def test_a_factor_of_one_marks_what_is_above_the_mean_and_more_marks_less() -> None:
    arrivals = [*steady(10, 60.0), *steady(30, 10.0, start=60.0)]
    shares = [burst_ratio(arrivals, DualSignalParams(factor=f)) for f in (1.0, 1.5, 2.0, 3.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.15
    assert shares[-1] == 0.0


def test_the_live_factor_is_one_and_a_half() -> None:
    assert DualSignalParams().factor == 1.5
    assert (DualSignalParams().short_window, DualSignalParams().mean_window) == (1.0, 60.0)


def test_the_mean_runs_over_60_seconds_then_a_new_level_is_the_mean() -> None:
    found = labels([*steady(10, 60.0), *steady(30, 120.0, start=60.0)])
    assert any(label.is_burst for label in found[600:1200])
    assert not any(label.is_burst for label in found[-1200:])


def test_the_first_request_ever_is_no_burst() -> None:
    assert not labels([(1.7e9, 100_000)])[0].is_burst


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
    settings = GatewaySettings(10_000, burst="dual-signal", burst_params={"factor": 1.0})
    gateway = GatewayCore("g", "g:1", settings)
    gateway.handle(SchedulerConnected(), now=0.0)
    seen: list[Request] = []
    for number, (at, tokens) in enumerate([*steady(10, 60.0), *steady(40, 1.0, start=60.0)]):
        submit = Submit(Request(f"r{number}", "m", (1,) * tokens, SamplingParams(), at))
        seen += [a for a in gateway.handle(submit, now=at) if isinstance(a, Request)]
    assert not any(request.is_burst for request in seen[:600])
    assert sum(request.is_burst for request in seen[600:]) == pytest.approx(30, abs=4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("short_window", 0.0), ("mean_window", 0.5), ("factor", 0.9), ("factor", float("nan"))],
)
def test_a_parameter_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(HeadwayError, match=name):
        DualSignalParams(**{name: value})
