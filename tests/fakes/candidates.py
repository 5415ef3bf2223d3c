"""A request as policies see it, for their tests: of batching, and of dispatch and placement."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from headway.cluster import UnitId
from headway.policies.batching import Batching
from headway.request import Phase, StreamKey


@dataclass(frozen=True)
class Queued:
    """Whatever a test does not say is nothing, or none."""

    name: int = 1
    arrival_at: float = 0.0
    num_prompt_tokens: int = 100
    num_output_tokens: int = 0
    attained_tokens: int = 0
    num_cached_tokens: int = 0
    num_hit_tokens: int = 0
    num_kv_tokens: int = 0
    num_phase_tokens: int = 0
    phase: Phase = Phase.PREFILL
    running: bool = False
    decoding: bool = False
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


@dataclass(frozen=True)
class Prompt:
    """One that waits for a turn or, when it is prefilled, for a unit that decodes it."""

    name: int = 1
    num_tokens: int = 10
    arrival_at: float = 0.0
    predicted_remaining: float = 0.0
    bucket: int = 0
    barred: Collection[UnitId] = ()
    num_growth_tokens: int = 1
    is_burst: bool = False
    opens_answer: bool = True
    session_id: str = ""
    expected_output: float = 0.0
    promised: float = 0.0

    @property
    def due_at(self) -> float:
        return self.arrival_at + self.promised

    @property
    def key(self) -> StreamKey:
        return StreamKey("g", self.name)


def decoding(name: int, num_output_tokens: int, arrival_at: float = 0.0, prompt: int = 0) -> Queued:
    """Runs, and answers; all of its prompt was computed here."""
    return Queued(
        name,
        arrival_at,
        num_prompt_tokens=prompt,
        num_output_tokens=num_output_tokens,
        attained_tokens=max(0, prompt + num_output_tokens - 1),
        num_kv_tokens=max(0, prompt + num_output_tokens - 1),
        num_phase_tokens=num_output_tokens,
        phase=Phase.ANSWERING,
        running=True,
        decoding=True,
    )


def served(policy: Batching, candidates: Iterable[Queued], now: float = 0.0) -> list[int]:
    """Names in the policy's order."""
    ranked = sorted(candidates, key=lambda c: (policy.rank(c, now=now).rank, c.key))
    return [c.name for c in ranked]
