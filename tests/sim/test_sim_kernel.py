"""Virtual time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.sim.kernel import Kernel
from headway.sim.network import Network, NetworkParams


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.5])))
def test_things_happen_in_order_of_time_then_of_asking(times: list[float]) -> None:
    kernel, happened = Kernel(), list[tuple[float, int]]()
    for number, at in enumerate(times):
        kernel.at(at, lambda at=at, number=number: happened.append((at, number)))  # type: ignore[misc]
    kernel.run()
    assert happened == sorted((at, number) for number, at in enumerate(times))


def test_what_happens_may_ask_for_more_but_never_in_the_past() -> None:
    kernel, seen = Kernel(), list[float]()
    kernel.at(2.0, lambda: kernel.at(1.0, lambda: seen.append(kernel.now)) and None)
    kernel.run()
    assert seen == [2.0]


def test_a_cancelled_timer_does_not_happen() -> None:
    kernel, seen = Kernel(), list[int]()
    timer = kernel.at(1.0, lambda: seen.append(1))
    kernel.at(0.5, timer.cancel)
    kernel.run()
    assert seen == []


def test_running_until_an_instant_leaves_the_rest_for_later() -> None:
    kernel, seen = Kernel(), list[float]()
    for at in (1.0, 2.0):
        kernel.at(at, lambda: seen.append(kernel.now))
    kernel.run(until=1.5)
    assert (seen, kernel.now) == ([1.0], 1.5)
    kernel.run()
    assert seen == [1.0, 2.0]


def test_transfers_over_one_link_follow_each_other() -> None:
    kernel, arrived = Kernel(), list[tuple[str, float]]()
    network = Network(kernel, NetworkParams(bytes_per_s=100.0, latency=0.0))
    network.transfer("a", "b", 100, lambda: arrived.append(("a to b", kernel.now)))
    network.transfer("a", "c", 100, lambda: arrived.append(("a to c", kernel.now)))
    network.transfer("d", "e", 100, lambda: arrived.append(("d to e", kernel.now)))
    assert network.queued("a", "x") == 2.0
    kernel.run()
    assert arrived == [("a to b", 1.0), ("d to e", 1.0), ("a to c", 2.0)]
