"""The field's routers: what each prefers, and the thresholds at which it changes its mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role, UnitId, UnitLoad
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Costs
from headway.messages import Dispatch, UnitBatch
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.dynamo import Dynamo, DynamoParams
from headway.policies.dispatch.llm_d import STICKY, LlmD, LlmDParams
from headway.policies.dispatch.lmetric import Lmetric
from headway.policies.dispatch.preble import Preble, PrebleParams
from headway.policies.dispatch.prompt_units import PromptUnits
from headway.policies.dispatch.protocol import UnitDebt
from headway.policies.dispatch.routing import Routing
from headway.policies.dispatch.session_hash import SessionHash
from headway.policies.dispatch.sglang import Sglang, SglangParams
from tests.fakes.routed import RoutedPrompt, goes_to, sent_by, turns_of, unit
from tests.fakes.scheduler_text import SchedulerHarness, make_info, make_request

MakeRouting = Callable[[], Routing]
ROUTERS: list[MakeRouting] = [Dynamo, LlmD, Lmetric, Preble, SessionHash, Sglang]
SEEN_AT_A = RoutedPrompt(1, hits={"a": 900})


def cold(name: int, num_tokens: int = 1000) -> RoutedPrompt:
    return RoutedPrompt(name, num_tokens)


# --- all of them ----------------------------------------------------------------------


@pytest.mark.parametrize("make", [Dynamo, LlmD, Preble, Sglang])
def test_on_equal_units_a_beginning_decides(make: MakeRouting) -> None:
    for home in ("a", "b", "c"):
        loads = [unit(name) for name in ("a", "b", "c")]
        assert goes_to(make(), loads, RoutedPrompt(1, hits={home: 900})) == home


@pytest.mark.parametrize("make", [Dynamo, Preble, SessionHash, Sglang])
def test_ties_are_drawn_and_equal_at_each_look(make: MakeRouting) -> None:
    loads = [unit(name) for name in ("a", "b", "c", "d")]
    first = {name: goes_to(make(), loads, cold(name)) for name in range(40)}
    assert set(first.values()) == {"a", "b", "c", "d"}
    assert first == {name: goes_to(make(), loads, cold(name)) for name in range(40)}


@pytest.mark.parametrize("make", ROUTERS)
def test_what_one_look_sends_counts_for_those_behind(make: MakeRouting) -> None:
    loads = [unit(name, room=1500) for name in ("a", "b", "c")]
    found = sent_by(make(), loads, *(cold(name) for name in range(4)))
    assert sorted(found.values()) == ["a", "b", "c"]


@pytest.mark.parametrize("make", [Dynamo, LlmD, Lmetric, Preble, Sglang])
def test_nobody_is_looked_at_behind_those_that_fill_all_units(make: MakeRouting) -> None:
    policy, looked = make(), list[object]()
    policy.matches = looked.append
    waiting = [cold(name) for name in range(1000)]
    policy.turns([unit("a", room=2000), unit("b", room=0)], len(waiting), now=0.0, waiting=waiting)
    assert looked == waiting[:2]


PROMPTS = st.lists(
    st.tuples(
        st.integers(1, 1200),
        st.sampled_from(["", "s", "t"]),
        st.dictionaries(st.sampled_from("abc"), st.integers(1, 1200)),
    ),
    max_size=8,
).map(
    lambda rows: [
        RoutedPrompt(i, length, session, {name: min(hit, length - 1) for name, hit in hits.items()})
        for i, (length, session, hits) in enumerate(rows)
    ]
)
FIGURES = st.tuples(
    st.integers(0, 9000), st.integers(0, 9), st.integers(0, 9), st.integers(0, 3000)
)


@pytest.mark.parametrize("make", ROUTERS)
@given(prompts=PROMPTS, figures=st.lists(FIGURES, min_size=1, max_size=3))
def test_everybody_goes_once_where_there_is_room(
    make: MakeRouting, prompts: list[RoutedPrompt], figures: list[tuple[int, int, int, int]]
) -> None:
    loads = [
        unit(name, owed=owed, requests=n, running=min(n, running), used=3000 - room, room=room,
             capacity=3000)
        for name, (owed, n, running, room) in zip("abc", figures, strict=False)
    ]  # fmt: skip
    policy = make()
    turns = turns_of(policy, loads, prompts)
    given_keys = [key for turn in turns for key in turn.own]
    assert len(given_keys) == len(set(given_keys))
    assert not {*given_keys} & {*policy.held}
    sizes = {prompt.key: prompt.num_tokens for prompt in prompts}
    for turn in turns:
        room = next(load for load in loads if load.worker_id == turn.worker_id).units[0].free_tokens
        assert sum(sizes[key] for key in turn.own) <= room
    assert [*turns_of(policy, loads, prompts)] == turns


# --- Dynamo ---------------------------------------------------------------------------


def test_dynamo_takes_the_fewest_tokens_to_compute_and_in_use() -> None:
    loads = [unit("a", owed=500), unit("b", used=700), unit("c", owed=300, used=300)]
    assert goes_to(Dynamo(), loads, cold(1)) == "a"
    assert goes_to(Dynamo(DynamoParams(prefill_load_scale=2.0)), loads, cold(1)) == "b"


def test_dynamo_credits_what_is_cached_and_less_of_it_in_host_memory() -> None:
    prompt = RoutedPrompt(1, hits={"a": 600, "b": (0, 700)})
    loads = [unit("a"), unit("b")]
    assert goes_to(Dynamo(), loads, prompt) == "a"
    assert goes_to(Dynamo(DynamoParams(host_credit=1.0)), loads, prompt) == "b"
    assert goes_to(Dynamo(DynamoParams(overlap_credit=0.0)), loads, prompt) == "b"


def test_dynamos_temperature_draws_by_cost() -> None:
    loads = [unit("a"), unit("b", used=100), unit("c", used=1000)]

    def drawn(temperature: float) -> Counter[str | None]:
        policy = Dynamo(DynamoParams(temperature=temperature))
        return Counter(goes_to(policy, loads, cold(name)) for name in range(300))

    assert drawn(0.0) == {"a": 300}
    assert drawn(0.01) == {"a": 300}
    some = drawn(0.5)
    assert some["a"] > some["b"] > some["c"] > 0
    assert min(drawn(100.0).values()) > 70


# --- SGLang ---------------------------------------------------------------------------


def test_sglang_needs_a_share_of_the_prompt() -> None:
    loads = [unit("a", requests=2), unit("b", requests=1)]
    assert goes_to(Sglang(), loads, RoutedPrompt(1, hits={"a": 301})) == "a"
    assert goes_to(Sglang(), loads, RoutedPrompt(1, hits={"a": 300})) == "b"


def test_sglang_of_equal_beginnings_takes_the_fewest_requests() -> None:
    loads = [unit("a", requests=2), unit("b", requests=1), unit("c")]
    assert goes_to(Sglang(), loads, RoutedPrompt(1, hits={"a": 900, "b": 900})) == "b"


@pytest.mark.parametrize(
    ("most", "fewest", "home"), [(70, 5, "b"), (69, 5, "a"), (300, 200, "a"), (301, 200, "b")]
)
def test_sglang_gives_a_beginning_up_above_both_thresholds(
    most: int, fewest: int, home: str
) -> None:
    loads = [unit("a", requests=most), unit("b", requests=fewest)]
    assert goes_to(Sglang(), loads, SEEN_AT_A) == home


def test_sglangs_thresholds_are_parameters() -> None:
    loads = [unit("a", requests=6), unit("b")]
    assert goes_to(Sglang(SglangParams(balance_abs=4)), loads, SEEN_AT_A) == "b"
    assert goes_to(Sglang(SglangParams(balance_abs=6)), loads, SEEN_AT_A) == "a"


# --- llm-d ----------------------------------------------------------------------------


def test_llm_d_weighs_a_beginning_against_queue_and_kv() -> None:
    queued = [unit("a", requests=1), unit("b")]
    assert goes_to(LlmD(), queued, RoutedPrompt(1, hits={"a": 700})) == "a"  # 2.1 against 2
    assert goes_to(LlmD(), queued, RoutedPrompt(1, hits={"a": 600})) == "b"  # 1.8 against 2
    full = [unit("a", used=80_000), unit("b")]
    assert goes_to(LlmD(), full, RoutedPrompt(1, hits={"a": 600})) == "a"  # 1.8 against 1.6
    assert goes_to(LlmD(), full, RoutedPrompt(1, hits={"a": 500})) == "b"  # 1.5 against 1.6


def test_llm_ds_queue_is_who_does_not_run_yet() -> None:
    loads = [unit("a", requests=9, running=9), unit("b", requests=2, running=1)]
    assert goes_to(LlmD(), loads, cold(1)) == "a"


def test_llm_d_sends_cold_prompts_to_the_unit_longest_without() -> None:
    policy, loads = LlmD(), [unit(name) for name in ("a", "b", "c")]
    first = [goes_to(policy, loads, cold(name)) for name in range(3)]
    assert sorted(filter(None, first)) == ["a", "b", "c"]
    assert [goes_to(policy, loads, cold(name)) for name in range(3, 6)] == first
    assert goes_to(policy, loads, RoutedPrompt(6, hits={"a": 999})) == "a"  # it is not cold
    assert goes_to(policy, loads, cold(7)) == first[0]


def test_llm_d_sends_cold_prompts_of_a_hint_to_the_unit_of_it_longest_without() -> None:
    policy, loads, hint = LlmD(), [unit(name) for name in ("a", "b", "c")], frozenset("bc")
    sent = [goes_to(policy, loads, RoutedPrompt(name, among=hint)) for name in range(3)]
    assert sorted(map(str, sent[:2])) == ["b", "c"]
    assert sent[2] == sent[0]


def test_llm_d_forgets_a_lost_units_cold_prompts() -> None:
    policy, loads = LlmD(), [unit("a"), unit("b")]
    sent = [goes_to(policy, loads, cold(name)) for name in range(2)]
    policy.leave("a")
    policy.leave("b")
    assert goes_to(policy, [unit(str(sent[1]))], cold(3)) == sent[1]
    assert goes_to(policy, loads, cold(4)) == sent[0]


def test_sticky_keeps_to_units_with_most_of_the_prompt() -> None:
    policy = LlmD(LlmDParams(guide=STICKY))
    loads = [unit("a", owed=5000), unit("b", owed=4000), unit("c")]
    assert goes_to(policy, loads, RoutedPrompt(1, hits={"a": 900, "b": 850})) == "b"
    assert goes_to(policy, loads, RoutedPrompt(2, hits={"a": 790})) == "c"


def test_sticky_gives_up_a_unit_that_owes_too_much_more() -> None:
    policy = LlmD(LlmDParams(guide=STICKY, most_delay=10.0))
    policy.learn(Costs(prefill_per_token=1e-3))
    assert goes_to(policy, [unit("a", owed=10_000), unit("b")], SEEN_AT_A) == "a"
    assert goes_to(policy, [unit("a", owed=10_001), unit("b")], SEEN_AT_A) == "b"
    always = LlmD(LlmDParams(guide=STICKY, most_delay=0.0))
    assert goes_to(always, [unit("a", owed=90_000), unit("b")], SEEN_AT_A) == "a"


# --- Preble ---------------------------------------------------------------------------

T = 1e-3


def preble(**params: float) -> Preble:
    policy = Preble(PrebleParams(**params))  # type: ignore[arg-type]  # of its fields
    policy.learn(Costs(prefill_per_token=T, per_request=1e-3, per_kv_token=1e-6))
    return policy


def fill(policy: Preble, home: str, num_tokens: int, name: int = 100, now: float = 0.0) -> None:
    """Have a unit compute a prompt."""
    assert goes_to(policy, [unit(home)], cold(name, num_tokens), now) == home
    policy.leave(home)


def test_preble_exploits_what_is_more_than_half_of_the_prompt() -> None:
    policy = preble()
    fill(policy, "a", 2000)
    loads = [unit("a"), unit("b")]
    assert goes_to(policy, loads, RoutedPrompt(1, hits={"a": 501})) == "a"
    assert goes_to(policy, loads, RoutedPrompt(2, hits={"a": 500})) == "b"


def test_preble_exploits_the_least_loaded_of_equal_holders() -> None:
    policy = preble()
    fill(policy, "a", 2000)
    loads = [unit("a"), unit("b"), unit("c")]
    assert goes_to(policy, loads, RoutedPrompt(1, hits={"a": 900, "b": 900})) == "b"


def test_preble_explores_by_load_and_the_prompts_own_cost() -> None:
    policy = preble()
    fill(policy, "a", 300)
    loads = [unit("a"), unit("b")]
    assert goes_to(policy, loads, RoutedPrompt(1, hits={"a": 400})) == "a"  # 0.3 + 0.6 s
    policy = preble()
    fill(policy, "a", 500)
    assert goes_to(policy, loads, RoutedPrompt(1, hits={"a": 400})) == "b"  # 0.5 + 0.6 s


def test_prebles_load_forgets_what_is_older_than_the_window() -> None:
    policy = preble(history=60.0)
    fill(policy, "a", 3000, now=0.0)
    fill(policy, "b", 1000, now=50.0)
    loads = [unit("a"), unit("b")]
    assert goes_to(policy, loads, cold(1, 1), now=59.0) == "b"
    assert goes_to(policy, loads, cold(2, 1), now=61.0) == "a"


def test_prebles_load_counts_outputs_that_run() -> None:
    loads = [unit("a", requests=4, running=4, used=1000), unit("b")]
    policy = preble(default_output=100.0)
    fill(policy, "b", 400)  # 0.4 s; at a 4 outputs of 100 passes of 5 ms
    assert goes_to(policy, loads, cold(1)) == "b"
    assert goes_to(preble(default_output=1e-6), loads, cold(1)) in ("a", "b")
    policy = preble(default_output=10.0)
    fill(policy, "b", 400)
    assert goes_to(policy, loads, cold(1)) == "a"


def test_preble_has_the_lightest_take_over_from_a_much_heavier() -> None:
    for balance, home in ((15.0, "a"), (3.0, "b")):
        policy = preble(balance=balance, least_requests=2)
        fill(policy, "a", 4000)
        fill(policy, "b", 1000)
        assert goes_to(policy, [unit("a"), unit("b")], SEEN_AT_A) == home


def test_preble_balances_only_once_enough_was_sent() -> None:
    policy = preble(balance=3.0, least_requests=3)
    fill(policy, "a", 4000)
    fill(policy, "b", 1000)
    assert goes_to(policy, [unit("a"), unit("b")], SEEN_AT_A) == "a"


# --- what they are shown --------------------------------------------------------------


def test_the_kv_in_use_is_what_is_not_free_and_what_dispatches_will_take() -> None:
    info = make_info("w", units=2, blocks=100, block_size=10)
    instance = Instance(info, 0.0)
    instance.report([UnitLoad(0, 0, 3, 400, 60), UnitLoad(1, 0, 1, 100, 90)], now=0.0)
    assert [(u.num_running, u.kv_tokens, u.kv_capacity) for u in instance.load.units] == [
        (3, 400, 1000),
        (1, 100, 1000),
    ]
    instance.sent(Dispatch(1, (UnitBatch(1, (make_request(1, 95),)),)), now=0.0)
    assert [unit.kv_tokens for unit in instance.load.units] == [400, 200]


def test_a_view_whose_figures_change_in_place_is_looked_at_again() -> None:
    """The fast simulation keeps one object for an instance."""

    class View:
        worker_id = "a"
        role = Role.UNIFIED
        num_units = 1
        chunk_tokens = 100
        requests = 0

        @property
        def units(self) -> list[UnitDebt]:
            return [UnitDebt(UnitId("a", 0), 0, self.requests, 100, 100)]

    view, units = View(), PromptUnits()
    for number in (0, 4):
        view.requests = number
        units.update([cast(InstanceLoad, view)])
        assert [unit.num_requests for unit in units] == [number]


@pytest.mark.parametrize("dispatch", ["session-hash", "dynamo", "llm-d", "sglang", "preble"])
def test_a_session_stays_where_its_first_turn_was(dispatch: str) -> None:
    settings = SchedulerSettings(dispatch=dispatch, packing="pbaa", prefix_hits=True)
    scheduler = SchedulerHarness(settings)
    workers = ("a", "b", "c")
    for worker_id in workers:
        scheduler.connect(
            make_info(worker_id, Role.UNIFIED, chunk=10_000, blocks=2000, max_len=20_000)
        )
    homes = set()
    for name in range(1, 5):
        request = replace(make_request(name, 2000 + 600 * name), session_id="s")
        scheduler.post(replace(request, arrival_at=scheduler.now))
        home = next(w for w in workers if name in scheduler.dispatched(w))
        scheduler.accept(home)
        scheduler.end_forward(home, after=0.1, finished=(name,))
        homes.add(home)
    assert len(homes) == 1
