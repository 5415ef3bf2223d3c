"""PASCAL inside an instance: two queues, quanta, demotion; and its phase-blind baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.policies.batching.pascal import Pascal, PascalParams
from headway.policies.batching.rr import RoundRobinBatching
from headway.request import Phase
from tests.fakes.candidates import Queued, served


def reasoning(num_tokens: int = 0, **fields: Any) -> Queued:
    shape = {"phase": Phase.REASONING, "decoding": True, "running": True, **fields}
    return Queued(num_phase_tokens=num_tokens, num_output_tokens=num_tokens, **shape)


def answering(num_tokens: int = 0, **fields: Any) -> Queued:
    return reasoning(num_tokens, phase=Phase.ANSWERING, **fields)


def order(*candidates: Queued) -> list[int]:
    return served(Pascal(), candidates)


def test_reasoning_is_served_before_answering() -> None:
    assert order(answering(name=1), reasoning(490, name=2, arrival_at=9.0)) == [2, 1]


def test_prefill_is_in_the_queue_of_reasoning() -> None:
    prompt = Queued(name=2, phase=Phase.PREFILL, num_prompt_tokens=9000, arrival_at=9.0)
    assert order(answering(name=1), prompt) == [2, 1]


def test_who_has_used_a_quantum_goes_behind_those_who_have_not() -> None:
    for make in (reasoning, answering):
        assert order(make(500, name=1), make(499, name=2, arrival_at=9.0)) == [2, 1]
        assert order(make(499, name=1), make(0, name=2, arrival_at=9.0)) == [1, 2]


def test_reasoning_with_more_kv_than_5000_tokens_is_demoted() -> None:
    candidates = reasoning(4901, name=1), answering(name=2, arrival_at=9.0)
    assert order(*candidates) == [2, 1]
    candidates = reasoning(4900, name=1), answering(name=2, arrival_at=9.0)
    assert order(*candidates) == [1, 2]


def test_demotion_is_for_good_even_where_the_kv_was_taken() -> None:
    preempted = replace(reasoning(4901, name=1), running=False, num_kv_tokens=0)
    assert order(preempted, answering(name=2, arrival_at=9.0)) == [2, 1]


def test_quanta_are_counted_anew_from_the_phase_boundary() -> None:
    fresh = replace(answering(name=1), num_output_tokens=3000)
    assert order(answering(500, name=2), fresh) == [1, 2]


def test_a_rank_says_until_when_it_holds() -> None:
    policy = Pascal()
    turn = policy.rank(reasoning(120, attained_tokens=220), now=0.0)
    assert turn.until_tokens == 220 + 380
    last = policy.rank(reasoning(4890, attained_tokens=4990), now=0.0)
    assert last.until_tokens == 4990 + 11  # demoted in the middle of a turn


def test_memory_goes_to_reasoning_first_and_then_by_quanta() -> None:
    policy = Pascal()
    assert policy.may_preempt(answering(), reasoning(), now=0.0)
    assert not policy.may_preempt(reasoning(), answering(), now=0.0)
    assert policy.may_preempt(reasoning(500), reasoning(), now=0.0)
    assert not policy.may_preempt(reasoning(400), reasoning(), now=0.0)


def test_the_baseline_is_blind_to_phases() -> None:
    policy = RoundRobinBatching()
    assert policy.rank(reasoning(10), now=0.0) == policy.rank(answering(10), now=0.0)
    assert policy.rank(reasoning(500), now=0.0).rank > policy.rank(answering(0), now=0.0).rank


def test_a_quantum_out_of_range_is_refused_with_the_range() -> None:
    with pytest.raises(HeadwayError, match="quantum"):
        PascalParams(quantum=0)
