"""``session-hash``: the turns of a session go to one unit."""

from __future__ import annotations

import pytest

from headway.policies.dispatch.session_hash import LEAST, SessionHash, SessionHashParams
from tests.fakes.routed import RoutedPrompt, goes_to, sent_by, unit

NAMES = ["a", "b", "c", "d"]
SESSIONS = range(400)


def turn(session: int, name: int = 0, num_tokens: int = 1000) -> RoutedPrompt:
    return RoutedPrompt(name, num_tokens, session_id=f"s{session}")


def homes(policy: SessionHash, names: list[str]) -> dict[int, str | None]:
    loads = [unit(name) for name in names]
    return {session: goes_to(policy, loads, turn(session)) for session in SESSIONS}


def test_a_session_goes_to_one_unit_whatever_that_owes() -> None:
    policy = SessionHash()
    for session, home in homes(policy, NAMES).items():
        busy = [unit(name, owed=9000 if name == home else 0, requests=50) for name in NAMES]
        assert goes_to(policy, busy, turn(session, name=1)) == home


def test_sessions_are_spread_over_all_units() -> None:
    found = list(homes(SessionHash(), NAMES).values())
    assert all(60 < found.count(name) < 140 for name in NAMES)


def test_a_lost_unit_moves_its_own_sessions_only() -> None:
    policy = SessionHash()
    before = homes(policy, NAMES)
    policy.leave("b")
    after = homes(policy, ["a", "c", "d"])
    moved = [session for session in SESSIONS if before[session] != after[session]]
    assert moved
    assert all(before[session] == "b" for session in moved)
    assert {after[session] for session in moved} == {"a", "c", "d"}


def test_a_new_unit_takes_sessions_and_none_moves_between_the_others() -> None:
    policy = SessionHash()
    before, after = homes(policy, NAMES), homes(policy, [*NAMES, "e"])
    moved = [session for session in SESSIONS if before[session] != after[session]]
    assert 40 < len(moved) < 120
    assert all(after[session] == "e" for session in moved)


@pytest.mark.parametrize("first", ["hashed", LEAST])
def test_what_names_no_session_goes_to_the_fewest_requests(first: str) -> None:
    policy = SessionHash(SessionHashParams(first=first))
    loads = [unit("a", requests=3), unit("b", requests=1), unit("c", requests=2)]
    assert goes_to(policy, loads, RoutedPrompt(1)) == "b"


def test_a_session_waits_for_its_unit_and_those_behind_it_as_well() -> None:
    policy = SessionHash()
    home = goes_to(policy, [unit("a"), unit("b")], turn(1))
    loads = [unit(name, room=500 if name == home else 9000) for name in ("a", "b")]
    long, short = turn(1, name=1, num_tokens=600), turn(1, name=2, num_tokens=100)
    assert sent_by(policy, loads, long, short) == {}
    assert set(policy.held) == {long.key, short.key}
    assert sent_by(policy, loads, short) == {2: home}
    assert not policy.held


def test_with_spills_it_goes_to_the_next_unit_of_its_session() -> None:
    policy = SessionHash(SessionHashParams(spills=True))
    home = goes_to(policy, [unit("a"), unit("b")], turn(1))
    loads = [unit(name, room=500 if name == home else 9000) for name in ("a", "b")]
    assert goes_to(policy, loads, turn(1)) not in (None, home)


def test_a_unit_that_could_never_hold_the_prompt_is_no_home() -> None:
    loads = [unit("a", capacity=500, room=500), unit("b")]
    policy = SessionHash()
    assert {goes_to(policy, loads, turn(session)) for session in range(20)} == {"b"}


def test_a_bound_on_loads_sends_what_is_beyond_it_to_the_next() -> None:
    policy = SessionHash(SessionHashParams(most_load=1.25))
    for session in range(20):
        home = goes_to(policy, [unit("a"), unit("b")], turn(session))
        loads = [unit(name, requests=9 if name == home else 1) for name in ("a", "b")]
        assert goes_to(policy, loads, turn(session, name=1)) != home
        loads = [unit(name, requests=5 if name == home else 4) for name in ("a", "b")]
        assert goes_to(policy, loads, turn(session, name=2)) == home


def test_a_session_begun_at_the_fewest_requests_stays_there_until_that_is_gone() -> None:
    policy = SessionHash(SessionHashParams(first=LEAST))
    assert goes_to(policy, [unit("a", requests=2), unit("b", requests=1)], turn(1)) == "b"
    assert goes_to(policy, [unit("a"), unit("b", requests=9)], turn(1, name=1)) == "b"
    policy.leave("b")
    assert goes_to(policy, [unit("a")], turn(1, name=2)) == "a"
    assert goes_to(policy, [unit("a", requests=9), unit("b")], turn(1, name=3)) == "a"
