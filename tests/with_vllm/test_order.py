"""The order of a plain vLLM, without vLLM: hints of clients, and who comes first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.core.reasoning import Markers
from headway.core.worker.settings import WorkerSettings
from headway.cost.costs import Source
from headway.cost.pass_time import PassTime
from headway.errors import Code, HeadwayError
from headway.policies.batching.headway import Headway
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.batching.uniboost import UniBoost
from headway.policies.readers import constants_of
from headway.request import Phase, StreamKey
from headway.service_class import shipped_classes
from headway_vllm.hints import ClassHeader, Hints, read_hints
from headway_vllm.order import PolicyOrder
from headway_vllm.settings import SETTING, OrderSettings, read_settings


@pytest.mark.parametrize(
    ("told", "hints"),
    [
        (None, Hints()),
        ({"headway_reasons": 1, "headway_predicted_output_tokens": 30}, Hints(True, 30)),
        ({"headway_reasons": False}, Hints(reasons=False)),
        ({"headway_reasons": "yes", "headway_predicted_output_tokens": "many"}, Hints()),
        ({"headway_predicted_output_tokens": float("nan")}, Hints()),
        ({"headway_predicted_output_tokens": -1}, Hints()),
        ({"headway_predicted_output_tokens": [1]}, Hints()),
        ({"headway": {"reasons": True}}, Hints()),
    ],
)
def test_hints_that_are_none_are_ignored(told: Any, hints: Hints) -> None:
    assert read_hints(told) == hints


def test_a_class_is_named_or_follows_from_the_priority_of_vllm() -> None:
    classes = shipped_classes().by_name
    assert read_hints(None, 0).service is None
    assert read_hints(None, -5).service is None
    assert read_hints(None, 1).service == classes["agent"]
    assert read_hints(None, 50).service == classes["batch"]
    assert read_hints({"headway_class": "interactive"}, 50).service == classes["interactive"]
    assert read_hints({"headway_class": "no class"}).service is None
    assert read_hints({"headway_class": ["batch"]}).service is None


def test_who_yields_by_its_class_gives_way_to_all_others() -> None:
    order = OrderSettings("headway").order()
    order.came("batch", [1] * 8, 10, read_hints(None, 10), 100.0, now=101.0)
    order.came("later", [1] * 8, 10, Hints(), 100.5, now=101.0)
    assert order.place_of("later") < order.place_of("batch")
    assert order.gives_way("batch")
    assert not order.gives_way("later")


async def served(scope: dict[str, Any], *messages: dict[str, Any]) -> tuple[Any, Any]:
    """Return the scope and the body that reach an application behind the middleware."""
    found: list[Any] = []
    waiting = list(messages)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        found.extend((scope, body))

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError("nothing is answered here")

    await ClassHeader(app)(scope, receive, send)
    return found[0], found[1]


def posted(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "headers": list(headers)}


NAMED = (b"x-headway-class", b"batch")


async def test_the_header_becomes_an_extra_argument_and_a_pieced_body_is_one() -> None:
    parts = [b'{"model": "m", "vllm_xargs"', b': {"headway_reasons": 1}}']
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    last = {"type": "http.request", "body": b""}
    scope, body = await served(posted(NAMED, (b"content-length", b"52")), *messages, last)
    given = {"model": "m", "vllm_xargs": {"headway_class": "batch", "headway_reasons": 1}}
    assert json.loads(body) == given
    assert dict(scope["headers"])[b"content-length"] == b"%d" % len(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"vllm_xargs": 5}'])
async def test_a_body_that_takes_no_class_passes_as_it_is(body: bytes) -> None:
    message = {"type": "http.request", "body": body}
    assert (await served(posted(NAMED), message))[1] == body
    assert (await served(posted(), message))[1] == body


async def test_a_class_in_the_body_stands_over_the_header() -> None:
    body = b'{"vllm_xargs": {"headway_class": "agent"}}'
    _, changed = await served(posted(NAMED), {"type": "http.request", "body": body})
    assert json.loads(changed) == json.loads(body)


async def test_a_client_that_has_left_is_told_of_as_it_was() -> None:
    part = {"type": "http.request", "body": b"{", "more_body": True}
    _, body = await served(posted(NAMED), part, {"type": "http.disconnect"})
    assert body == b"{"


@pytest.mark.parametrize(
    ("given", "found", "policy", "said"),
    [
        (OrderSettings(), Markers((8,), (7,)), "Headway", "reasoning ends with tokens [8]"),
        (OrderSettings(end_of_reasoning=(8,)), Markers(), "Headway", "Headway's order"),
        (OrderSettings(), Markers(), "Fcfs", "vLLM's own order"),
        (OrderSettings("uniboost"), Markers((8,), (7,)), "UniBoost", "in the order of uniboost"),
    ],
)
def test_without_a_setting_a_model_that_reasons_has_our_order_and_another_has_stock(
    given: OrderSettings, found: Markers, policy: str, said: str
) -> None:
    order = given.order(lambda: found)
    assert type(order.policy).__name__.lower() == policy.lower()
    assert said in given.said(order)


def test_markers_that_are_given_stand_over_those_of_the_model() -> None:
    order = OrderSettings(end_of_reasoning=(3,)).order(lambda: Markers((8,), (7,)))
    order.came("r", [1, 2], 10, Hints(), 100.0, now=100.0)
    order.planned({"r": 2}, {"r": 0}, now=100.0)
    order.computed("r", 2, (8,), 0.01, 100.0, ended=False)
    assert order.synced("r").phase is Phase.REASONING
    order.computed("r", 1, (3,), 0.01, 100.0, ended=False)
    assert order.synced("r").phase is Phase.ANSWERING


def test_lengths_are_learnt_from_requests_that_have_ended_with_prompts_alike() -> None:
    order = OrderSettings("srpt").order()
    order.came("first", [1] * 8, 100, Hints(), 100.0, now=100.0)
    assert order.synced("first").predicted_remaining is None
    serve(order, 9)
    order.came("next", [1] * 8, 100, Hints(), 200.0, now=200.0)
    remaining = order.synced("next").predicted_remaining
    assert remaining is not None
    assert 3 <= remaining <= 20


THINK, END = 7, 8


@pytest.mark.parametrize(
    ("hints", "prompt", "reasons"),
    [
        (Hints(), [1, 2], True),
        (Hints(), [1, 2, THINK], True),
        (Hints(), [1, THINK, END], False),
        (Hints(reasons=False), [1, 2], False),
        (Hints(reasons=True), [1, THINK, END], True),
    ],
)
def test_who_does_not_say_whether_it_reasons_does_if_the_model_does(
    hints: Hints, prompt: list[int], reasons: bool
) -> None:
    order = OrderSettings("headway", {}, (END,), (THINK,)).order()
    order.came("r", prompt, 10, hints, 100.0, now=100.0)
    assert order.synced("r").reasons is reasons
    silent = OrderSettings("headway").order()
    silent.came("r", prompt, 10, Hints(), 100.0, now=100.0)
    assert not silent.synced("r").reasons


def test_who_does_not_stream_has_no_reader_joins_the_critical_and_says_nothing_of_their_lag() -> (
    None
):
    order = OrderSettings("headway", {"promise": 5.0}).order()
    order.came("unread", [1] * 8, 10, Hints(), 100.0, now=100.0, is_read=False)
    order.came("chat", [1] * 8, 10, Hints(), 104.0, now=104.0)
    assert order.place_of("chat") < order.place_of("unread")
    order.came("later", [1] * 8, 10, Hints(), 105.5, now=105.5)
    order.settle(now=105.5)
    assert order.place_of("chat") < order.place_of("unread") < order.place_of("later")
    serve(order, 20, is_read=False)
    assert {each.name for each in constants_of(order.policy)}.isdisjoint({"ℓ", "ρ"})


def test_the_lag_of_readers_is_measured_within_the_engine() -> None:
    order = OrderSettings("headway").order()
    serve(order, 20)
    known = {each.name: each for each in constants_of(order.policy)}
    assert known["T"].source is Source.MEASURED
    assert known["T"].value == known["ℓ"].value
    assert known["ρ"].value == pytest.approx(1.0)


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


def test_where_memory_is_short_those_that_give_way_are_behind_all_others() -> None:
    order = OrderSettings("headway", {"long_tokens": 1}, (3,), (2,)).order()
    for number in range(4):
        hints = Hints(reasons=number in (0, 2))
        order.came(f"r{number}", [1] * 8, 10, hints, 100.0 + number, now=110.0)
        order.planned({f"r{number}": 8}, {f"r{number}": 0}, now=110.0)
        order.computed(f"r{number}", 8, (5,), 0.01, 110.0, ended=False)
    order.settle(now=110.0)
    best_first = order.running(is_short=False)
    assert sorted(best_first, key=order.place_of) == best_first
    assert order.running(is_short=True)[2:] == [n for n in best_first if n in ("r0", "r2")]


@pytest.mark.parametrize(
    "given",
    [
        *("[]", "5", "null", '[["batching", "fcfs"]]', '{"batching": 5}', '{"batching": null}'),
        *('{"params": null}', '{"params": []}', '{"end_of_reasoning": 5}'),
        *('{"end_of_reasoning": ["x"]}', '{"end_of_reasoning": [-1]}', '{"reader_pace": "x"}'),
        *('{"reader_pace": -1}', '{"reader_pace": NaN}', '{"reader_pace": null}'),
        *('{"metrics": null}', '{"metrics": "0"}', '{"metrics": "a b:80"}', '{"metrics": ":80"}'),
        *('{"metrics": 65536}', '{"steps": "0"}', '{"patience": -1}', '{"patience": NaN}'),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(SETTING, given)
    with pytest.raises(HeadwayError, match=SETTING) as refused:
        read_settings()
    assert refused.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("metrics", [9402, "9402", "127.0.0.1:9402", "[::1]:9402", "pod-1:9402"])
def test_metrics_have_a_port_or_an_address(
    monkeypatch: pytest.MonkeyPatch, metrics: int | str
) -> None:
    monkeypatch.setenv(SETTING, json.dumps({"batching": "uniboost", "metrics": metrics}))
    assert read_settings().metrics == metrics


class Refusing(Batching):
    """By service; it refuses all but those with so many output tokens."""

    def __init__(self, fewest: int) -> None:
        self.fewest = fewest
        self.num_asked = 0

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        attained = candidate.attained_tokens
        return Ranked((float(attained),), attained + 1)

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        self.num_asked += 1
        return victim.num_output_tokens >= self.fewest


def test_who_was_refused_is_asked_for_again_when_its_rank_changes() -> None:
    policy = Refusing(fewest=3)
    order = PolicyOrder(policy, WorkerSettings())
    for number in range(3):
        order.came(f"r{number}", [1] * 8, 10, Hints(), 100.0 + number, now=110.0)
    counts, starts = {"r0": 8, "r1": 8}, {"r0": 0, "r1": 0}
    order.planned(counts, starts, now=110.0)
    for name in counts:
        order.computed(name, 8, (5,), 0.01, 110.0, ended=False)
    order.settle(now=110.0)
    for _ in range(2):
        assert list(order.yielding("r2", now=110.0)) == []
        assert policy.num_asked == 2
    for place in range(2):
        order.planned({"r1": 1}, {"r1": 8 + place}, now=110.1)
        order.computed("r1", 1, (5,), 0.01, 110.1, ended=False)
        order.settle(now=110.1)
    assert list(order.yielding("r2", now=110.1)) == ["r1"]
    assert policy.num_asked == 3
    assert list(order.yielding("r2", now=112.0)) == ["r1"]
    assert policy.num_asked == 5


TRUE = PassTime(0.01, 2e-4, 1e-3, 1e-5)


def serve(
    order: PolicyOrder, num_requests: int, response_time: float = 1.0, *, is_read: bool = True
) -> None:
    """Run requests one by one on an engine with such pass times."""
    now = 100.0
    for number in range(num_requests):
        name, num_prompt, num_output = f"r{number}", 5 + 7 * (number % 9), 3 + number % 17
        arrived_at = now - response_time
        order.came(
            name, [1] * num_prompt, num_output, Hints(), arrived_at, now=now, is_read=is_read
        )
        for place in range(num_output):
            start, count = (num_prompt + place - 1, 1) if place else (0, num_prompt)
            share = order.planned({name: count}, {name: start}, now=now)
            seconds = TRUE.seconds(*share)
            now += seconds
            order.ran(seconds, share)
            ended = place == num_output - 1
            order.computed(name, count, (5,), seconds, now, ended=ended)
            order.settle(now=now)


def test_the_policy_learns_what_prompts_and_outputs_cost_here() -> None:
    order = OrderSettings("headway").order()
    assert isinstance(order.policy, Headway)
    serve(order, 60)
    found = {each.name: each for each in constants_of(order.policy)}
    cost = next(each for name, each in found.items() if "prompt" in name)
    assert cost.source is Source.MEASURED
    assert cost.value == pytest.approx(TRUE.per_prefill_token, rel=0.3)


def test_gamma_is_fitted_within_the_engine() -> None:
    order = OrderSettings("uniboost", {"gamma": 0.05}).order()
    assert isinstance(order.policy, UniBoost)
    serve(order, 130, response_time=5.0)
    assert order.policy.gamma != 0.05
