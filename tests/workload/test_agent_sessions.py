"""Sessions from a seed: what each kind is like, and what a prompt shares with those before it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.workload.agents import AGENTS, END, KINDS, AgentParams, SessionCounts, make_sessions
from headway.workload.session import BLOCK_TOKENS, Session


def common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Return how many ids two lists begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 1000))
def test_a_seed_gives_the_same_sessions_and_another_gives_others(kind: str, seed: int) -> None:
    found = make_sessions(kind, seed, 4, 1.0)
    assert found == make_sessions(kind, seed, 4, 1.0)
    assert found != make_sessions(kind, seed + 1, 4, 1.0)
    assert sum(each.at is not None for each in found) == 4
    assert [each.number for each in found] == list(range(len(found)))


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 1000))
def test_ids_cover_the_prompt_and_the_output(kind: str, seed: int) -> None:
    for each in make_sessions(kind, seed, 4, 1.0):
        for turn in each.turns:
            length = turn.input_length + turn.output_length
            assert len(turn.hash_ids) == -(-length // BLOCK_TOKENS)
            assert 0 <= turn.reasoning_length < turn.output_length


@given(st.integers(0, 1000))
def test_a_turn_goes_on_from_the_one_before_until_the_context_is_full(seed: int) -> None:
    params = replace(AGENTS, most_context=12_000)
    by_number = {each.number: each for each in make_sessions("agents", seed, 6, 1.0, params)}
    for session in by_number.values():
        for before, turn in pairwise(session.turns):
            if turn.hash_ids[: len(before.hash_ids)] == before.hash_ids:
                assert turn.input_length > before.input_length + before.output_length
                assert turn.input_length <= 12_000
            elif session.at is not None:  # a summary behind the system prompt
                whole = (turn.input_length - 2000) // BLOCK_TOKENS
                assert common(before.hash_ids, turn.hash_ids) == whole
        for turn in session.turns:
            for number in turn.children:
                inherited(turn.hash_ids, by_number[number])


def inherited(ids: tuple[int, ...], child: Session) -> None:
    """Check that a child begins with its parent's context or with a system prompt at most."""
    assert child.at is None
    assert child.kind == "sub"
    shared = common(ids, child.turns[0].hash_ids)
    assert shared <= child.turns[0].input_length // BLOCK_TOKENS


def test_skewed_sessions_have_a_few_that_ask_most() -> None:
    found = make_sessions("skewed", 3, 100, 1.0)
    num_turns = sorted(len(each.turns) for each in found if each.at is not None)
    assert num_turns[-1] > 40 > 3 * num_turns[50]


def test_hot_prompts_share_8192_tokens_and_nothing_else() -> None:
    found = [each.turns[0] for each in make_sessions("hot", 1, 200, 48.0)]
    assert len({turn.hash_ids[:16] for turn in found}) == 2
    tails = [each for turn in found for each in turn.hash_ids[16:]]
    assert len(tails) == len(set(tails))


def test_mixed_loads_have_cold_prompts_and_long_reasoning() -> None:
    found = make_sessions("mixed", 1, 200, 1.0)
    by_kind = {kind: [s for s in found if s.kind == kind] for kind in ("cold", "reasoning")}
    assert all(40 < len(each) < 100 for each in by_kind.values())
    assert all(each.turns[0].reasoning_length for each in by_kind["reasoning"])
    cold = [each for session in by_kind["cold"] for each in session.turns[0].hash_ids]
    assert len(cold) == len(set(cold))


def test_agents_share_what_the_measurements_were_made_with() -> None:
    counts = SessionCounts.of(make_sessions("aiperf", 1, 100, 1.0))
    assert counts.mean_input == pytest.approx(17_400, rel=0.02)
    assert 0.93 <= counts.shared <= 0.96
    counts = SessionCounts.of(make_sessions("agents", 1, 100, 1.0))
    assert 0.92 <= counts.shared <= 0.96


def test_a_session_that_is_full_ends_where_asked() -> None:
    params = replace(AGENTS, when_full=END, most_context=10_000, turns=1000.0, most_turns=1000)
    for each in make_sessions("agents", 1, 10, 1.0, params):
        lengths = [turn.input_length for turn in each.turns]
        assert lengths == sorted(lengths)
        assert all(length <= 10_000 for length in lengths[1:])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"fork": 1.5}, "fork is 1.5; it must be from 0 to 1"),
        ({"pause": 0.0}, "pause is 0.0"),
        ({"turns": float("nan")}, "turns is nan"),
        ({"when_full": "stop"}, "when_full is 'stop'; it must be one of compact, end"),
    ],
)
def test_parameters_have_limits(changed: dict[str, object], said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        AgentParams(**changed)  # type: ignore[arg-type]  # wrong ones are the point
    assert said in refused.value.message


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(HeadwayError, match="kind is 'robots'; it must be one of agents"):
        make_sessions("robots", 1, 4, 1.0)
