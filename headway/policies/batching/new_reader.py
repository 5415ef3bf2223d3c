"""A request that has just come, for the question who would yield to it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from headway.request import Phase, StreamKey


@dataclass(frozen=True, slots=True)
class NewReader:
    """A ``Candidate`` that others are compared with: a reader's request at its arrival, no class.

    It is never served.
    """

    arrival_at: float
    num_prompt_tokens: int

    key: ClassVar[StreamKey] = StreamKey("", 0)
    tenant: ClassVar[str] = ""
    answer_due_at: ClassVar[float] = inf
    yields: ClassVar[bool] = False
    decoding: ClassVar[bool] = False
    running: ClassVar[bool] = False
    phase: ClassVar[Phase] = Phase.PREFILL
    num_cached_tokens: ClassVar[int] = 0
    num_hit_tokens: ClassVar[int] = 0
    num_output_tokens: ClassVar[int] = 0
    attained_tokens: ClassVar[int] = 0
    num_kv_tokens: ClassVar[int] = 0
    num_phase_tokens: ClassVar[int] = 0
    num_preemptions: ClassVar[int] = 0
    predicted_remaining: ClassVar[float | None] = None
    true_remaining: ClassVar[int | None] = None
    is_read: ClassVar[bool] = True
    reasons: ClassVar[bool] = False
    opens_answer: ClassVar[bool] = True
    in_hand_until: ClassVar[float] = -inf
    served: ClassVar[float] = 0.0

    @property
    def due_at(self) -> float:
        """Its arrival."""
        return self.arrival_at
