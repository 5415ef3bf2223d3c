"""PASCAL inside an instance: two queues, quanta, demotion; and its phase-blind baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.policies.batching.pascal import Pascal, PascalParams
from headway.policies.batching.rr import RoundRobinBatching
from headway.request import Phase, StreamKey


@dataclass(frozen=True)
class Queued:
    name: int = 1
    phase: Phase = Phase.REASONING
    num_phase_tokens: int = 0
    num_prompt_tokens: int = 100
    num_output_tokens: int = 0
    attained_tokens: int = 0
    arrival_at: float = 0.0
    num_kv_tokens: int = 0
    num_cached_tokens: int = 0
    num_hit_tokens: int = 0
    decoding: bool = True
    running: bool = True
    predicted_remaining: float | None = None
    true_remaining: int | None = None
    reasons: bool = False
    yields: bool = False
    allowance: float = 0.0
    answer_due_at: float = inf
    opens_answer: bool = False
    is_read: bool = True
    in_hand_until: float = -inf
    num_preemptions: int = 0
    served: float = 0.0
    tenant: str = ""

    @property
    def due_at(self) -> float:
        return self.arrival_at + self.allowance

    @property
    def key(self) -> StreamKey:
        return StreamKey("g", self.name)


def reasoning(num_tokens: int = 0, **fields: Any) -> Queued:
    return Queued(num_phase_tokens=num_tokens, num_output_tokens=num_tokens, **fields)


def answering(num_tokens: int = 0, **fields: Any) -> Queued:
    return reasoning(num_tokens, phase=Phase.ANSWERING, **fields)


def served(*candidates: Queued) -> list[int]:
    policy = Pascal()
    ranked = sorted(candidates, key=lambda c: (policy.rank(c, now=0.0).rank, c.key))
    return [c.name for c in ranked]


def test_reasoning_is_served_before_answering() -> None:
    assert served(answering(name=1), reasoning(490, name=2, arrival_at=9.0)) == [2, 1]


def test_prefill_is_in_the_queue_of_reasoning() -> None:
    prompt = Queued(name=2, phase=Phase.PREFILL, num_prompt_tokens=9000, arrival_at=9.0)
    assert served(answering(name=1), prompt) == [2, 1]


def test_who_has_used_a_quantum_goes_behind_those_who_have_not() -> None:
    for make in (reasoning, answering):
        assert served(make(500, name=1), make(499, name=2, arrival_at=9.0)) == [2, 1]
        assert served(make(499, name=1), make(0, name=2, arrival_at=9.0)) == [1, 2]


def test_reasoning_with_more_kv_than_5000_tokens_is_demoted() -> None:
    candidates = reasoning(4901, name=1), answering(name=2, arrival_at=9.0)
    assert served(*candidates) == [2, 1]
    candidates = reasoning(4900, name=1), answering(name=2, arrival_at=9.0)
    assert served(*candidates) == [1, 2]


def test_demotion_is_for_good_even_where_the_kv_was_taken() -> None:
    preempted = replace(reasoning(4901, name=1), running=False, num_kv_tokens=0)
    assert served(preempted, answering(name=2, arrival_at=9.0)) == [2, 1]


def test_quanta_are_counted_anew_from_the_phase_boundary() -> None:
    fresh = replace(answering(name=1), num_output_tokens=3000)
    assert served(answering(500, name=2), fresh) == [1, 2]


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
