"""The order of a plain vLLM, without vLLM: hints of clients, and who comes first."""

from __future__ import annotations

from typing import Any

import pytest

from headway.request import StreamKey
from headway_vllm.order import Hints, OrderSettings, read_hints


@pytest.mark.parametrize(
    ("told", "hints"),
    [
        (None, Hints()),
        ({"headway_reasons": 1, "headway_predicted_output_tokens": 30}, Hints(True, 30)),
        ({"headway_reasons": "yes", "headway_predicted_output_tokens": "many"}, Hints()),
        ({"headway_predicted_output_tokens": float("nan")}, Hints()),
        ({"headway_predicted_output_tokens": -1}, Hints()),
        ({"headway_predicted_output_tokens": [1]}, Hints()),
        ({"headway": {"reasons": True}}, Hints()),
    ],
)
def test_hints_that_are_none_are_ignored(told: Any, hints: Hints) -> None:
    assert read_hints(told) == hints


def order_of(policy: str, *lengths: int) -> list[str]:
    """Requests of so many prompt tokens that come a millisecond apart, best first."""
    order = OrderSettings(policy).order()
    for number, length in enumerate(lengths):
        order.came(f"r{number}", [1] * length, 10, Hints(), 100.0 + number / 1000, now=101.0)
    return sorted((f"r{n}" for n in range(len(lengths))), key=order.place_of)


def test_the_policy_orders_the_requests() -> None:
    assert order_of("fcfs", 500, 10, 100) == ["r0", "r1", "r2"]
    assert order_of("uniboost", 500, 10, 100) == ["r1", "r2", "r0"]


def test_a_request_that_has_ended_leaves_nothing() -> None:
    order = OrderSettings("uniboost").order()
    order.came("r", [1] * 8, 10, Hints(), 100.0, now=101.0)
    order.planned({"r": 8}, {"r": 0}, now=101.0)
    order.computed("r", 8, (5,), 0.01, 101.01, ended=False)
    order.preempted("r", voluntary=True, now=101.02)
    order.planned({"r": 8}, {"r": 0}, now=101.03)
    order.computed("r", 9, (6,), 0.01, 101.04, ended=True)
    order.settle(now=101.05)
    assert not order.knows("r")
    assert (order.queue.running, order.queue.waiting) == ([], [])
    assert (order.num_voluntary, order.num_forced) == (1, 0)
    assert order.key_of("r") == StreamKey("r", 0)
