"""Virtual time."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.sim.hop_costs import HopCosts
from headway.sim.host import Host
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


def own_hosts(kernel: Kernel) -> Host:
    """Every instance has a host of its own."""
    return Host(kernel, HopCosts(), None, lambda: 0)


def _arrivals(*asked: tuple[float, str, str, int]) -> dict[str, float]:
    """When transfers (asked at, from, to, bytes) over links of 100 bytes/s arrive."""
    kernel, arrived = Kernel(), dict[str, float]()
    network = Network(kernel, NetworkParams(bytes_per_s=100.0, latency=0.0), own_hosts(kernel))

    def send(source: str, target: str, num_bytes: int) -> None:
        name = f"{source} to {target}"
        network.transfer(source, target, num_bytes, lambda: arrived.update({name: kernel.now}))

    for at, source, target, num_bytes in asked:
        kernel.at(at, partial(send, source, target, num_bytes))
    kernel.run()
    return arrived


def test_transfers_over_one_end_share_it_and_others_do_not_wait() -> None:
    arrived = _arrivals((0.0, "a", "b", 100), (0.0, "a", "c", 100), (0.0, "d", "e", 100))
    assert arrived == {"d to e": 1.0, "a to b": 2.0, "a to c": 2.0}


def test_a_transfer_does_not_wait_for_one_that_its_neighbour_waits_for() -> None:
    arrived = _arrivals((0.0, "b", "x", 1000), (0.0, "a", "x", 1000), (0.0, "a", "y", 10))
    assert arrived["a to y"] == pytest.approx(0.2)
    assert arrived["b to x"] == arrived["a to x"] == pytest.approx(20.0)


def test_who_shares_a_link_gets_all_of_it_when_the_other_has_ended() -> None:
    arrived = _arrivals((0.0, "a", "b", 100), (0.5, "c", "b", 200))
    assert arrived == {"a to b": pytest.approx(1.5), "c to b": pytest.approx(3.0)}


def test_transfers_of_an_instance_that_is_gone_end_and_leave_their_share_to_others() -> None:
    kernel, arrived = Kernel(), dict[str, float]()
    network = Network(kernel, NetworkParams(bytes_per_s=100.0, latency=0.5), own_hosts(kernel))
    for target, num_bytes in (("b", 400), ("c", 300)):
        network.transfer("a", target, num_bytes, lambda to=target: arrived.update({to: kernel.now}))  # type: ignore[misc]
    kernel.at(2.0, partial(network.cut, "b"))
    kernel.run()
    assert arrived == {"b": 2.5, "c": pytest.approx(4.5)}


@given(
    st.lists(
        st.tuples(
            st.floats(0, 5), st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 500)
        ),
        max_size=12,
        unique_by=lambda sent: sent[1:3],
    )
)
def test_every_transfer_arrives_no_sooner_than_its_ends_can_carry(
    asked: list[tuple[float, str, str, int]],
) -> None:
    arrived = _arrivals(*asked)
    assert len(arrived) == len(asked)
    for at, source, target, num_bytes in asked:
        assert arrived[f"{source} to {target}"] >= at + num_bytes / 100 - 1e-9
    last, total = max(arrived.values(), default=0.0), sum(sent[3] for sent in asked)
    begun = max((sent[0] for sent in asked), default=0.0)
    assert last <= begun + total / 100 + 1e-9
