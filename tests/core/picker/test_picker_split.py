"""The picker's core in front of endpoints of which some compute prompts and others decode."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.picker.core import BEST_GUESS, GATEWAY_ID, SPLIT
from headway.core.picker.events import (
    EndpointInfo,
    EndpointListed,
    EndpointMetrics,
    EndpointUnlisted,
    Pick,
    PickEnded,
    Responded,
    Silence,
)
from headway.request import StreamKey
from tests.fakes.picker_core import Gateway

P, Q, D, E = "10.0.1.1:8000", "10.0.1.2:8000", "10.0.2.1:8000", "10.0.2.2:8000"
_TOKEN = 0.001  # seconds of a prompt token
_POOL = {P: Role.PREFILL, Q: Role.PREFILL, D: Role.DECODE, E: Role.DECODE}
_HINTS = (None, None, None, (P, D), (Q, D, E), (D, E))


def split_pool(*roles: tuple[str, Role]) -> Gateway:
    """Endpoints with these roles, whose prompts take a millisecond a token."""
    gateway = Gateway()
    for address, role in roles or ((P, Role.PREFILL), (D, Role.DECODE), (E, Role.DECODE)):
        gateway.handle(EndpointListed(EndpointInfo(address, "m", 1000, role=role)))
        gateway.scraped(address)
        gateway.now += 1.0
        figures = EndpointMetrics(computed_tokens=1000.0, prefill_seconds=1000 * _TOKEN)
        gateway.scraped(address, figures)
    return gateway


def test_a_long_prompt_is_computed_apart_and_decoded_by_whoever_has_least() -> None:
    gateway = split_pool()
    first, second = gateway.ask(500), gateway.ask(400)
    gateway.pass_time(0.6)  # the second one is next
    picks = gateway.pick(first), gateway.pick(second)
    assert [pick.prefiller for pick in picks] == [P, P]
    assert [pick.rule for pick in picks] == [SPLIT, SPLIT]
    assert {pick.endpoints[0] for pick in picks} == {D, E}
    assert all(P not in pick.endpoints for pick in picks)


def test_a_short_prompt_stays_whole() -> None:
    gateway = split_pool()
    pick = gateway.pick(gateway.ask(99))
    assert (pick.prefiller, pick.endpoints[0] in (D, E)) == ("", True)


def test_prompts_that_others_computed_do_not_make_a_decode_endpoint_slow() -> None:
    gateway = split_pool()
    for n in range(1, 99):  # each computes one token there, in a pass of 5 ms
        gateway.now += 1.0
        figures = EndpointMetrics(
            computed_tokens=1000.0 + 10 * n, prefill_seconds=1.0 + 0.05 * n, num_prompts=10.0 * n
        )
        for address in (D, E):
            gateway.scraped(address, figures)
    assert gateway.pick(gateway.ask(99)).prefiller == ""


def test_a_prompt_that_a_decode_endpoint_has_stays_whole_there() -> None:
    gateway = split_pool()
    prompt = tuple(range(1, 801))
    number = gateway.ask(token_ids=prompt)
    first = gateway.pick(number)
    assert first.prefiller == P
    gateway.handle(Responded(StreamKey(GATEWAY_ID, number)))
    gateway.end(number)
    number = gateway.ask(token_ids=(*prompt, *range(2000, 2050)))
    gateway.pass_time(0.1)
    again = gateway.pick(number)
    assert (again.prefiller, again.endpoints[0]) == ("", first.endpoints[0])


def test_prompts_wait_for_a_prefill_endpoint_and_not_those_that_stay_whole() -> None:
    gateway = split_pool()
    first, second = gateway.ask(1000), gateway.ask(1000)
    assert gateway.pick(first).prefiller == P
    assert second not in gateway.answers
    assert gateway.pick(gateway.ask(50)).prefiller == ""
    gateway.pass_time(1000 * _TOKEN + 0.1)  # the first prompt is through
    assert gateway.pick(second).prefiller == P


def test_prompts_are_spread_over_prefill_endpoints() -> None:
    gateway = split_pool((P, Role.PREFILL), (Q, Role.PREFILL), (D, Role.DECODE))
    numbers = [gateway.ask(900) for _ in range(2)]
    gateway.pass_time(0.1)
    assert {gateway.pick(number).prefiller for number in numbers} == {P, Q}


def test_a_prefill_endpoint_that_fails_takes_no_decode_endpoint_along() -> None:
    gateway = split_pool()
    number = gateway.ask(500)
    assert gateway.pick(number).prefiller == P
    gateway.handle(Responded(StreamKey(GATEWAY_ID, number), failed=True))
    gateway.end(number)
    assert [each.health for each in gateway.core.endpoints(now=gateway.now)] == ["down", "up", "up"]
    whole = gateway.ask(500)
    assert gateway.pick(whole).prefiller == ""
    gateway.handle(Responded(StreamKey(GATEWAY_ID, whole), failed=True))
    health = {each.address: each.health for each in gateway.core.endpoints(now=gateway.now)}
    assert health[gateway.pick(whole).endpoints[0]] == "down"


def test_what_waits_for_a_prefill_endpoint_runs_whole_once_it_is_down() -> None:
    gateway = split_pool((P, Role.PREFILL), (D, Role.DECODE))
    first, second = gateway.ask(900), gateway.ask(900)
    assert gateway.pick(first).prefiller == P
    assert second not in gateway.answers
    gateway.scraped(P, Silence.REFUSED)
    pick = gateway.pick(second)
    assert (pick.endpoints, pick.prefiller) == ((D,), "")


def test_without_a_prefill_endpoint_all_stay_whole() -> None:
    gateway = split_pool()
    gateway.scraped(P, Silence.REFUSED)
    assert gateway.pick(gateway.ask(500)).prefiller == ""
    gateway.scraped(P)
    assert gateway.pick(gateway.ask(500)).prefiller == P
    gateway.handle(EndpointUnlisted(P))
    gateway.pass_time(0.6)
    assert gateway.pick(gateway.ask(500)).prefiller == ""


def test_a_hint_holds_for_both() -> None:
    gateway = split_pool()
    pick = gateway.pick(gateway.ask(500, among=(P, E)))
    assert (pick.prefiller, pick.endpoints) == (P, (E,))
    alone = gateway.pick(gateway.ask(500, among=(D,)))
    assert (alone.prefiller, alone.endpoints) == ("", (D,))


def test_who_is_held_too_long_is_computed_whole() -> None:
    gateway = split_pool()
    numbers = [gateway.ask(1000) for _ in range(12)]
    gateway.pass_time(6.0)
    rules = [gateway.pick(number).rule for number in numbers]
    assert set(rules) == {SPLIT, BEST_GUESS}
    for number in numbers:
        gateway.handle(Responded(StreamKey(GATEWAY_ID, number)))
        gateway.handle(PickEnded(StreamKey(GATEWAY_ID, number)))
    assert [each.num_requests for each in gateway.endpoints()] == [0, 0, 0]
    assert gateway.pick(gateway.ask(1000)).prefiller == P


def turn(gateway: Gateway, token_ids: Sequence[int], among: tuple[str, ...] | None = None) -> Pick:
    """A request from its question to its end, in front of endpoints that are idle then."""
    number = gateway.ask(token_ids=token_ids, among=among)
    gateway.pass_time(0.1)
    pick = gateway.pick(number)
    gateway.handle(Responded(StreamKey(GATEWAY_ID, number)))
    gateway.end(number)
    gateway.pass_time(4.0)
    return pick


def test_the_prefill_endpoint_that_has_most_of_a_prompt_computes_it() -> None:
    gateway = split_pool((P, Role.PREFILL), (Q, Role.PREFILL), (D, Role.DECODE))
    prompt = tuple(range(1, 901))
    owner = turn(gateway, prompt).prefiller
    other = ({P, Q} - {owner}).pop()
    assert turn(gateway, (*prompt, *range(2000, 2600))).prefiller == owner
    gateway.pick(gateway.ask(800, among=(owner, D)))
    number = gateway.ask(token_ids=(*prompt, *range(4000, 4300)))
    gateway.pass_time(0.01)
    assert gateway.pick(number).prefiller == other  # 800 + 300 tokens there, 1,200 here


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=5), st.sampled_from(_HINTS)),
        max_size=8,
    )
)
@settings(max_examples=40, deadline=None)
def test_of_idle_endpoints_those_compute_that_have_most_and_short_rests_stay_whole(
    asked: list[tuple[list[int], tuple[str, ...] | None]],
) -> None:
    """Prompts are paths through a tree, 512 tokens each step."""
    gateway = split_pool(*_POOL.items())
    has: dict[str, set[tuple[int, ...]]] = {address: set() for address in _POOL}
    for path, among in asked:
        steps = [tuple(path[: end + 1]) for end in range(len(path))]
        tokens = [1 + token for step in steps for token in range(_of(step), _of(step) + 512)]
        pick = turn(gateway, (*tokens, 0), among)
        allowed = {a: role for a, role in _POOL.items() if among is None or a in among}
        held = {a: max((len(s) for s in steps if s in has[a]), default=0) for a in allowed}
        decoders = [a for a, role in allowed.items() if role is Role.DECODE]
        prefillers = [a for a, role in allowed.items() if role is Role.PREFILL]
        stays = not prefillers or any(held[a] == len(path) for a in decoders)
        assert (pick.prefiller == "") is stays
        assert set(pick.endpoints) <= set(decoders)
        computes = pick.prefiller or pick.endpoints[0]
        assert held[computes] == max(held[a] for a in (decoders if stays else prefillers))
        for address in (computes, pick.endpoints[0]):
            has[address].update(steps)


def _of(step: tuple[int, ...]) -> int:
    return int("1" + "".join(map(str, step)), 2) << 10
