"""Sessions as messages of the right lengths, and what a run of them says."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from bench.agents.dialogue import LEAST_TOKENS, Dialogue
from bench.agents.loop import AgentRun, AskedTurn, SessionLife
from bench.agents.make import (
    BLOCK,
    AgentLoad,
    make_sessions,
    refuse_too_long,
    scaled,
)
from bench.agents.report import cached_around, cached_by_turn, figures_of, packed
from bench.agents.run import system_tokens
from bench.agents.texts import Measure, Texts, num_shared, shared_starts
from bench.serve.plan import Planned
from bench.serve.replay import ReplayedRequest
from headway.errors import HeadwayError
from headway.metrics import RequestTimes
from headway.workload.session import first_of, started
from headway.workload.sessions import Session, SessionTurn

TEXTS = Texts("salt", 4.0, 10)
PLAIN = Measure(4.0, 0, 0)


# --- texts ----------------------------------------------------------------------------


def test_equal_ids_have_equal_text_and_others_do_not() -> None:
    one, other = (TEXTS.between(ids, 0, 20, "") for ids in ((1, 2), (1, 3)))
    assert (one[:40], len(one)) == (other[:40], 80)
    assert one[40:50] != other[40:50]
    assert TEXTS.between((1, 2), 5, 15, "") == one[20:60]
    assert Texts("other", 4.0, 10).between((1, 2), 0, 20, "") != one


def test_a_text_behind_the_last_id_is_its_sessions_own() -> None:
    assert TEXTS.between((), 0, 10, "a") == TEXTS.between((), 0, 10, "a")
    assert TEXTS.between((), 0, 10, "a") != TEXTS.between((), 0, 10, "b")


def test_what_prompts_share_is_counted_from_their_beginning() -> None:
    assert num_shared((1, 2, 3), (1, 2, 4)) == 2
    assert num_shared((1,), (1, 2)) == 1
    assert num_shared((), (1,)) == 0
    assert shared_starts([(1, 2, 3), (9,), (1, 2, 4), (1, 5)]) == [2, 0, 2, 1]
    assert shared_starts([(1, 2)]) == [0]


def test_three_prompts_tell_what_a_token_and_a_message_are() -> None:
    # four characters a token, 5 tokens around one message, 7 around two more
    assert Measure.of((40, 80), 15, 25, 42) == Measure(4.0, 5, 7)


# --- messages -------------------------------------------------------------------------


def lengths(messages: Sequence[dict[str, str]]) -> list[tuple[str, int]]:
    return [(each["role"], len(each["content"]) // 4) for each in messages]


def test_a_turn_repeats_the_history_and_asks_up_to_its_length() -> None:
    talk = Dialogue(TEXTS, PLAIN, "0", 20)
    talk.ask(SessionTurn(0.0, 50, 10, (1, 2, 3, 4, 5)))
    talk.answered("a" * 40, 50, 10)
    assert talk.num_prompt_tokens == 50
    asked = talk.ask(SessionTurn(0.0, 75, 10, (1, 2, 3, 4, 5, 6, 7, 8)))
    assert lengths(asked) == [("system", 20), ("user", 30), ("assistant", 10), ("user", 15)]


def test_what_the_endpoint_counts_corrects_the_next_length() -> None:
    talk = Dialogue(TEXTS, Measure(4.0, 2, 3), "0", 0)
    assert lengths(talk.ask(SessionTurn(0.0, 40, 10))) == [("user", 38)]
    talk.answered("a" * 40, 44, 10)
    assert lengths(talk.ask(SessionTurn(0.0, 80, 10)))[-1] == ("user", 80 - 54 - 3)


def test_a_history_over_the_turns_length_still_asks_something() -> None:
    talk = Dialogue(TEXTS, PLAIN, "0", 0)
    talk.ask(SessionTurn(0.0, 40, 30))
    talk.answered("a" * 120, 40, 30)
    turn = SessionTurn(0.0, 50, 10)
    assert talk.length(turn) == 70 + LEAST_TOKENS
    assert lengths(talk.ask(turn))[-1] == ("user", LEAST_TOKENS)


def asked_twice() -> Dialogue:
    talk = Dialogue(TEXTS, PLAIN, "0", 20)
    for length in (40, 80):
        talk.ask(SessionTurn(0.0, length, 10, tuple(range(8))))
        talk.answered("a" * 40, length, 10)
    return talk


@pytest.mark.parametrize(
    ("ids", "kept"),
    [(tuple(range(8)), 5), (tuple(range(4)), 3), ((0, 1), 0), ((99,), 0)],
)
def test_a_child_begins_with_the_messages_that_both_prompts_share(
    ids: tuple[int, ...], kept: int
) -> None:
    parent = asked_twice()
    turn = SessionTurn(0.0, 120, 10, ids)
    child = parent.branch(turn, "1", 20, 10)
    assert child.messages == parent.messages[:kept]
    roles = [each["role"] for each in child.ask(turn)]
    assert roles[kept:] == (["user"] if kept else ["system", "user"])
    assert len(parent.messages) == 5


# --- sessions -------------------------------------------------------------------------


def test_a_seed_makes_the_same_sessions_and_another_others() -> None:
    load = AgentLoad(num_sessions=5, fork=0.5)
    assert make_sessions(load, 1) == make_sessions(load, 1) != make_sessions(load, 2)


def test_prompts_grow_by_answers_and_questions_and_keep_their_ids() -> None:
    for session in make_sessions(AgentLoad(num_sessions=4, fork=0.3), 3):
        for before, after in zip(session.turns, session.turns[1:], strict=False):
            assert after.input_length > before.input_length + before.output_length
            assert after.hash_ids[: len(before.hash_ids)] == before.hash_ids
        for turn in session.turns:
            assert len(turn.hash_ids) * BLOCK >= turn.input_length


def test_children_inherit_whole_blocks_of_the_turn_that_starts_them() -> None:
    sessions = make_sessions(AgentLoad(num_sessions=3, fork=1.0), 1)
    by_number = {each.number: each for each in sessions}
    children = 0
    for parent in sessions[:3]:
        for turn in parent.turns:
            (child,) = (by_number[number] for number in turn.children)
            whole = turn.input_length // BLOCK
            assert child.turns[0].hash_ids[:whole] == turn.hash_ids[:whole]
            assert child.at is None
            children += 1
    assert children == len(sessions) - 3


@pytest.mark.parametrize(("kinds", "shares"), [(0, False), (1, True)])
def test_sessions_share_a_system_prompt_or_have_their_own(kinds: int, shares: bool) -> None:
    sessions = make_sessions(AgentLoad(num_sessions=3, kinds=kinds, system=320), 1)
    assert set(system_tokens(sessions, BLOCK).values()) == {320 if shares else 0}


def test_a_child_has_no_more_system_prompt_than_its_parent() -> None:
    turn = SessionTurn(0.0, 40, 5, (1, 2, 3, 4), (2,))
    other = SessionTurn(0.0, 40, 5, (1, 9))
    child = SessionTurn(0.0, 50, 5, (1, 2, 3, 4, 5))
    sessions = [
        Session(0, "", 0.0, (turn,)),
        Session(1, "", 0.0, (other,)),
        Session(2, "", None, (child,)),
    ]
    assert system_tokens(sessions, 10) == {0: 10, 1: 10, 2: 10}


def test_sessions_start_at_drawn_instants_and_children_with_their_parent() -> None:
    sessions = make_sessions(AgentLoad(num_sessions=3, fork=1.0), 1)
    instants = [each.at for each in started(sessions, 2.0, random.Random(1))]
    tops = [each for each in instants[:3] if each is not None]
    assert len(tops) == 3
    assert 0.0 < tops[0] < tops[1] < tops[2]
    assert set(instants[3:]) == {None}
    assert {each.at for each in started(sessions[:3], float("inf"), random.Random(1))} == {0.0}


def test_the_first_sessions_of_a_file_bring_their_children() -> None:
    sessions = make_sessions(AgentLoad(num_sessions=3, fork=1.0, num_turns=2), 1)
    kept = first_of(sessions, 1)
    assert [each.number for each in kept] == [0, *(t.children[0] for t in sessions[0].turns)]


def test_scaled_lengths_are_at_least_a_token_and_too_long_ones_are_refused() -> None:
    sessions = [Session(0, "", 0.0, (SessionTurn(0.0, 5000, 3),))]
    assert scaled(sessions, 0.1)[0].turns[0] == SessionTurn(0.0, 500, 1)
    with pytest.raises(HeadwayError, match=r"5003 tokens and the model takes 2048: give --scale"):
        refuse_too_long(sessions, 2048)
    refuse_too_long(scaled(sessions, 0.1), 2048)


# --- figures --------------------------------------------------------------------------


def turn(
    session: int, place: int, sent_at: float, cached: int | None, *, error: str = ""
) -> AskedTurn:
    request = ReplayedRequest(Planned(0, sent_at, b"", "", None), sent_at)
    request.prompt_tokens, request.cached_tokens, request.error_kind = 100, cached, error
    if not error:
        times = RequestTimes(sent_at, sent_at + 0.5, None, sent_at + 1.5, 11)
        request.times = times
    return AskedTurn(session, "agent", place, request, 80 if place else 0)


def test_figures_count_answers_tasks_and_what_was_cached() -> None:
    turns = [turn(0, 0, 0.0, 0), turn(0, 1, 3.0, 60), turn(1, 0, 0.0, 0, error="timeout")]
    lives = [
        SessionLife(0, "agent", True, 0.0, 5.0, ""),
        SessionLife(1, "agent", True, 0.0, 1.0, "a turn failed"),
        SessionLife(2, "child", False, 0.0, 1.0, ""),
    ]
    found = figures_of(AgentRun(turns, lives, 6.0))
    assert found["ttft_mean"] == found["ttft_p99"] == 0.5
    assert found["tpot_mean"] == pytest.approx(0.1)
    assert found["ttlt_mean"] == 1.5
    assert (found["cached"], found["repeated"]) == (0.3, 0.4)
    assert (found["task_mean"], found["num_tasks"], found["num_tasks_ended"]) == (5.0, 2, 1)
    assert (found["num_turns"], found["num_failed"]) == (2, 1)


def test_an_endpoint_that_says_nothing_of_its_cache_has_no_share() -> None:
    assert "cached" not in figures_of(AgentRun([turn(0, 0, 0.0, None)]))


def test_turns_around_a_kill_are_those_of_sessions_that_lived_through_it() -> None:
    turns = [
        *(turn(0, place, at, cached) for place, at, cached in ((0, 0.0, 0), (1, 2.0, 80))),
        *(turn(0, place, at, cached) for place, at, cached in ((2, 6.0, 10), (3, 8.0, 80))),
        turn(1, 0, 9.0, 0),
        turn(2, 0, 1.0, 0),
    ]
    rows = cached_around(turns, 5.0)
    shares = {name: each.share for name, each in rows.items()}
    assert shares == {"last before": 0.8, "1st after": 0.1, "2nd after": 0.8}
    assert {place: each.num_turns for place, each in cached_by_turn(turns).items()} == {
        **{1: 3, 2: 1, 3: 1, 4: 1}
    }
    written = packed(AgentRun(turns), 5.0)
    assert json.loads(json.dumps(written))["around_kill"]["1st after"]["cached"] == 0.1
