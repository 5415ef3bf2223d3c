"""Sessions: turns, pauses, task times, their ends, and what is kept of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.gateway.core import GatewayCore
from headway.core.gateway.sessions import CLIENT, DROPPED, IDLE, SessionRow, Sessions
from headway.core.gateway.state import OpenRequest
from headway.errors import HeadwayError
from headway.request import FinishReason, Request, SamplingParams
from headway.service_class import Standing
from tests.fakes.gateway_core import SETTINGS, gateway, place, requests_in, submit, tokens

GREEDY = SamplingParams()


def asked(name: str, session_id: str = "s", *, tenant: str = "", at: float = 0.0) -> Request:
    standing = Standing(tenant)
    return Request(name, "m", (1, 2, 3), GREEDY, at, session_id=session_id, standing=standing)


def come(sessions: Sessions, request: Request, max_turns: int = 0) -> OpenRequest:
    turn = sessions.came(request, max_turns, now=request.arrival_at)
    state = OpenRequest(replace(request, ends_session=turn.ends_session))
    sessions.began(state)
    return state


def turn(sessions: Sessions, request: Request, end: float, max_turns: int = 0) -> None:
    sessions.ended(come(sessions, request, max_turns), now=end)


def rows(sessions: Sessions, now: float = 0.0) -> list[SessionRow]:
    return list(sessions.newest(50, now=now))


def test_turns_pauses_and_the_task_are_measured_until_the_client_ends_it() -> None:
    sessions = Sessions(60.0, 10)
    turn(sessions, asked("a", at=1.0), 3.0)
    turn(sessions, asked("b", at=7.0), 8.0)
    assert (sessions.num_idle, sessions.pauses.total) == (1, 4.0)
    turn(sessions, replace(asked("c", at=9.0), ends_session=True), 12.0)
    assert (sessions.num_idle, sessions.num_over[CLIENT]) == (0, 1)
    assert (sessions.turns.total, sessions.tasks.total, sessions.pauses.total) == (3.0, 11.0, 5.0)


def test_a_name_that_comes_again_after_its_end_is_a_new_session() -> None:
    sessions = Sessions(60.0, 10)
    turn(sessions, replace(asked("a"), ends_session=True), 1.0)
    assert sessions.came(asked("b", at=2.0), 0, now=2.0).number == 1


def test_the_outputs_of_a_call_are_one_turn_and_the_last_one_ends_it() -> None:
    sessions = Sessions(60.0, 10)
    names = [f"cmpl-0123456789abcdef-{n}" for n in range(3)]
    states = [come(sessions, asked(name)) for name in names]
    assert [(row.num_turns, row.num_running) for row in rows(sessions)] == [(1, 3)]
    for state in states[:2]:
        sessions.ended(state, now=1.0)
    assert (sessions.num_running, sessions.num_idle) == (1, 0)
    sessions.ended(states[2], now=2.0)
    assert (sessions.num_running, sessions.num_idle) == (0, 1)


def test_a_bound_of_turns_ends_a_session_with_that_turn() -> None:
    sessions = Sessions(60.0, 10)
    ends = []
    for n in range(4):
        state = come(sessions, asked(str(n), at=float(n)), max_turns=3)
        ends.append(state.request.ends_session)
        sessions.ended(state, now=n + 0.5)
    assert ends == [False, False, True, False]


def test_a_session_is_over_when_it_was_idle_for_long() -> None:
    sessions = Sessions(60.0, 10)
    turn(sessions, asked("a"), 2.0)
    sessions.came(asked("b", "", at=61.9), 0, now=61.9)
    assert sessions.num_over[IDLE] == 0
    sessions.came(asked("c", "", at=62.0), 0, now=62.0)
    assert (sessions.num_over[IDLE], sessions.num_idle, sessions.tasks.total) == (1, 0, 2.0)


def test_a_running_turn_is_never_idle() -> None:
    sessions = Sessions(60.0, 10)
    state = come(sessions, asked("a"))
    sessions.came(asked("b", "", at=600.0), 0, now=600.0)
    assert sessions.num_running == 1
    sessions.ended(state, now=700.0)
    assert (sessions.num_over[IDLE], sessions.num_idle) == (0, 1)


def test_equal_names_of_two_tenants_are_two_sessions() -> None:
    sessions = Sessions(60.0, 10)
    turn(sessions, asked("a", tenant="ann"), 1.0)
    turn(sessions, asked("b", tenant="bob", at=2.0), 3.0)
    assert [(row.tenant, row.num_turns) for row in rows(sessions)] == [("bob", 1), ("ann", 1)]
    assert sessions.pauses.total == 0.0


def test_who_ended_a_turn_longest_ago_gives_its_place() -> None:
    sessions = Sessions(60.0, 2)
    for at, name in enumerate("abcac"):
        turn(sessions, asked(f"{at}", name, at=at), at + 0.5)
    assert [row.session_id for row in rows(sessions)] == ["c", "a"]
    assert sessions.num_over[DROPPED] == 2  # a, which came again as a new one, and b


def test_a_request_without_a_session_counts_nowhere() -> None:
    sessions = Sessions(60.0, 10)
    assert sessions.came(asked("a", ""), 5, now=0.0) == (0, False)
    assert sessions.came(replace(asked("b", ""), ends_session=True), 0, now=0.0) == (0, True)
    assert not rows(sessions)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from("xyz"),
            st.booleans(),
            st.floats(0.0, 40.0),
            st.integers(0, 3),
        ),
        max_size=40,
    )
)
def test_every_turn_is_in_one_session_and_what_is_kept_is_bounded(
    steps: list[tuple[str, str, bool, float, int]],
) -> None:
    """Requests come and end in any order; a step ends the oldest request for a number below 3."""
    sessions, now, names = Sessions(30.0, 2), 0.0, count()
    running: list[OpenRequest] = []
    num_came = 0
    for tenant, name, ends, pause, choice in steps:
        now += pause
        if choice == 3 or not running:
            request = replace(
                asked(str(next(names)), name, tenant=tenant, at=now), ends_session=ends
            )
            running.append(come(sessions, request))
            num_came += 1
        else:
            sessions.ended(running.pop(0), now=now)
        assert sessions.num_idle <= 2
        keys = {(s.request.standing.tenant, s.request.session_id) for s in running}
        assert sessions.num_running == len(keys)
        kept = rows(sessions, now)
        counts = Counter((row.tenant, row.session_id) for row in kept)
        assert set(counts.values()) <= {1}
        assert sum(row.num_running for row in kept) == len(running)
        assert sessions.turns.total + sum(row.num_turns for row in kept) == num_came
        assert sum(sessions.num_over.values()) == sessions.turns.cumulated[-1]
        assert sessions.tasks.cumulated[-1] == sessions.turns.cumulated[-1]
        assert all(row.idle >= 0.0 and row.age >= row.idle for row in kept)


# --- in the core ----------------------------------------------------------------------


def served(core: GatewayCore, name: str, at: float, num_cached: int, max_turns: int = 0) -> Request:
    """One turn of ``s`` on the worker ``w``, a second long."""
    event = submit(name, at=at)
    own = replace(event.request, session_id="s")
    event = replace(event, request=own, max_turns=max_turns)
    (request,) = requests_in(core.handle(event, now=at))
    place(core, request)
    batch = tokens(request.stream_id, 0, [7], end=FinishReason.STOP)
    batch = replace(batch, num_cached={0: num_cached})
    core.handle(batch, now=at + 1.0)
    return request


def test_the_core_says_which_turn_is_the_last_and_where_it_ran() -> None:
    core = gateway(SETTINGS)
    first = served(core, "a", 0.0, 0, max_turns=2)
    (row,) = core.sessions.newest(5, now=3.0)
    assert (row.place.worker_ids, row.place.num_cached, row.idle) == (("w",), 0, 2.0)
    last = served(core, "b", 3.0, 3, max_turns=2)
    assert (first.ends_session, last.ends_session) == (False, True)
    assert core.sessions.num_over[CLIENT] == 1
    counted = core.sessions.prompt_tokens
    assert (counted[True, False], counted[False, True], counted[False, False]) == (4, 3, 1)


def test_a_life_has_its_session_and_its_turn() -> None:
    core = gateway(replace(SETTINGS, num_lives=4))
    served(core, "a", 0.0, 0)
    served(core, "b", 2.0, 3)
    life = core.lives.find("b", 4.0)
    assert life is not None
    assert (life.session_id, life.turn) == ("s", 2)


@pytest.mark.parametrize("name", ["x" * 257, "a\nb", "\x1b[31m", "\u202e"])
def test_a_name_that_is_long_or_unprintable_is_none(name: str) -> None:
    with pytest.raises(HeadwayError, match=r"session_id .* at most 256 printable"):
        asked("a", name)
