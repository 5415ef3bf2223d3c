"""Prompts of a unit in the order of its batching policy.

Only prompts have an order here: while memory suffices, whoever decodes is in every pass. Where it
does not, the order says who loses memory, and a run ends with an error.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

from headway.cluster import UnitId
from headway.errors import Code, HeadwayError
from headway.policies.batching import Batching
from headway.request import Phase, StreamKey
from headway.sim.clients import SimRequest

Rank = tuple[float, ...]


class Unserved(Protocol):
    """A request with prompt tokens to compute; ``running``: whether it has memory."""

    request: SimRequest
    key: StreamKey
    arrival_at: float
    num_prompt_tokens: int
    num_left: int
    running: bool


class ViewPrompt:
    """A request before its first token, as a batching policy sees it."""

    decoding = False
    phase = Phase.PREFILL
    num_cached_tokens = num_hit_tokens = num_output_tokens = num_preemptions = 0
    predicted_remaining: float | None = None
    in_hand_until = -inf
    served = 0.0

    def __init__(self, job: Unserved) -> None:
        request, service = job.request, job.request.standing.service
        self._job = job
        self.key, self.arrival_at = job.key, job.arrival_at
        self.due_at = self.arrival_at + (service.ttft or 0.0 if service is not None else 0.0)
        promised = None if service is None else service.ttfat
        self.answer_due_at = inf if promised is None else self.arrival_at + promised
        self.yields, self.tenant = request.standing.yields, request.standing.tenant
        self.num_prompt_tokens = job.num_prompt_tokens
        self.true_remaining: int | None = request.num_output_tokens
        self.is_read = request.is_read
        self.reasons = request.num_reasoning_tokens > 0
        self.opens_answer = self.is_read and not self.reasons

    @property
    def running(self) -> bool:
        """True if it has memory."""
        return self._job.running

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that are computed."""
        return self.num_prompt_tokens - self._job.num_left

    attained_tokens = num_phase_tokens = num_kv_tokens


class MemoryShortError(HeadwayError):
    """Memory is short, and the order of batching says who yields: only the cores simulate that."""


class PromptOrder:
    """The order of a unit's prompts by a policy that ranks them."""

    def __init__(self, name: str, policy: Batching) -> None:
        self._name = name
        self._policy = policy
        self._epoch = policy.epoch
        self._until = inf

    def rank(self, job: Unserved, now: float) -> Rank:
        """Return a request's rank, least first."""
        ranked = self._policy.rank(ViewPrompt(job), now=now)
        self._until = min(self._until, ranked.until_at)
        return ranked.rank

    def is_outdated(self, now: float) -> bool:
        """Return whether all ranks are to be drawn anew; if so, they are taken to be."""
        if self._policy.epoch == self._epoch and now < self._until:
            return False
        self._epoch, self._until = self._policy.epoch, inf
        return True

    def least_free(self, capacity: int) -> float:
        """Return the tokens of memory below which somebody has to yield."""
        return self._policy.reserve * capacity

    def no_memory(self, unit: UnitId, now: float) -> MemoryShortError:
        """Return the refusal to go on where memory is short."""
        message = (
            f"at {now:.1f} s unit {unit.unit} of {unit.worker_id} is short of memory, and the "
            f"order of batching {self._name} says who yields; the fidelity `policies` does not "
            "have that: add instances, or simulate this with --fidelity cores"
        )
        return MemoryShortError(Code.FAILED_PRECONDITION, message, param="fidelity")
