"""One request on a worker: its tokens, its blocks, and what a batching policy reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from headway.blocks import BlockHash
from headway.forward_pass import Sampled
from headway.messages import Handoff, HeldRequest
from headway.request import FinishReason, Phase, Request, StreamKey


class Stage(Enum):
    """Where a sequence stands on this worker."""

    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # has blocks, takes part in passes
    HANDOFF = "handoff"  # prefilled, keeps its blocks until another worker has them
    ARRIVING = "arriving"  # its blocks are being filled by another worker


@dataclass(slots=True, eq=False)
class SequenceState:
    """One request on this worker; tokens ``[0, num_computed)`` have their KV in ``blocks``.

    A batching policy reads it as a ``Candidate``.
    """

    request: Request
    unit: int
    stage: Stage
    output: list[int]
    blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)  # where its KV waits without blocks
    num_computed: int = 0
    num_cached_tokens: int = 0  # of the prompt, that this pool need not compute
    num_preemptions: int = 0
    num_voluntary: int = 0  # the voluntary ones of them
    answer_start: int | None = 0  # output tokens before the answer, None while it reasons
    in_hand_until: float = -inf
    predicted_total: float | None = None  # output tokens
    estimated_at: int = 0  # output tokens at that
    prediction: float | None = None  # the predictor's last, in tokens still to come
    predicted_at: int = 0  # output tokens when it was made
    asked_at: int | None = None  # output tokens when the predictor was asked last
    true_total: int | None = None
    hashes: list[BlockHash] = field(default_factory=list)  # of its full blocks, where cached
    num_named: int = 0  # of its blocks, that the pool has been told the hashes of
    num_hit_tokens: int = 0  # found in the cache when it was first admitted, or came to wait
    num_passes: int = 0  # in flight, that it is in
    swapping: bool = False  # its KV is not in its host blocks before the pass has ended
    returning: bool = False  # its KV is not in its blocks before the pass has ended
    cancelled: bool = False
    ended: FinishReason | None = None  # it stays until no pass touches its blocks
    pauses: bool = False  # it is not in the pass that is being planned
    hands_off: bool = False  # once its prompt is computed it awaits a handoff
    is_told: bool = False  # the scheduler knows that it can move
    moving: bool = False
    leaving: Handoff | None = None  # where it goes when it is in no pass
    num_rounds: int = 0  # of KV sent there while it runs
    num_sent: int = 0  # tokens whose KV they were
    sending: list[int] = field(default_factory=list)  # blocks of a round that is being sent
    attained_tokens: int = field(init=False)
    key: StreamKey = field(init=False)
    """The attempt's name across the cluster."""

    def __post_init__(self) -> None:
        self.key = self.request.key
        # What it has generated elsewhere was computed there, but for the last token.
        seen = self.num_tokens - 1 if self.output else 0
        self.attained_tokens = max(0, seen - self.num_cached_tokens)

    @property
    def is_over(self) -> bool:
        """Whether it draws no further token."""
        return self.cancelled or self.ended is not None

    @property
    def arrival_at(self) -> float:
        """Arrival at the gateway, seconds since the epoch."""
        return self.request.arrival_at

    @property
    def running(self) -> bool:
        """Whether it holds blocks."""
        return self.stage is not Stage.WAITING

    @property
    def num_prompt_tokens(self) -> int:
        """Of the request as its client sent it."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """By all attempts together."""
        return len(self.output)

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose KV is in its blocks."""
        return self.num_computed

    @property
    def phase(self) -> Phase:
        """What its reader waits for; a recompute does not change it."""
        if not self.output:
            return Phase.PREFILL
        return Phase.REASONING if self.answer_start is None else Phase.ANSWERING

    @property
    def num_phase_tokens(self) -> int:
        """Tokens since its phase began: computed ones in prefill, else generated ones."""
        if not self.output:
            return self.num_computed
        return len(self.output) - (self.answer_start or 0)

    @property
    def opens_answer(self) -> bool:
        """Whether its next token is the first that its reader sees."""
        return self.answer_start == len(self.output)

    @property
    def predicted_remaining(self) -> float | None:
        """Output tokens still to come, as predicted; 0 for one that has outlived that."""
        if self.predicted_total is None:
            return None
        return max(0.0, self.predicted_total - len(self.output))

    @property
    def num_tokens_since_prediction(self) -> int:
        """Output tokens since the predictor's last word."""
        return len(self.output) - self.predicted_at

    @property
    def true_remaining(self) -> int | None:
        """Output tokens still to come in truth."""
        return None if self.true_total is None else self.true_total - len(self.output)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.request.prompt_token_ids) + len(self.output)

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return self.num_tokens - self.num_computed

    @property
    def num_queued(self) -> int:
        """Of those, what is work as far as it is known: what the cache had is none."""
        num_hit = 0 if self.num_computed or self.running else self.num_hit_tokens
        return self.num_remaining - num_hit

    @property
    def decoding(self) -> bool:
        """Whether one more token in gives one more token out."""
        return self.num_computed > 0 and self.num_remaining == 1

    def begin_at(self, num_tokens: int) -> None:
        """So many tokens of its prompt were found in the cache."""
        self.num_computed = num_tokens
        if num_tokens > self.num_cached_tokens and not self.attained_tokens:
            self.num_cached_tokens = num_tokens

    def computed(self, num_tokens: int) -> None:
        """So many more tokens have their KV."""
        self.num_computed += num_tokens
        attained = self.num_computed - self.num_cached_tokens
        if attained > self.attained_tokens:
            self.attained_tokens = attained

    def drew(self, sampled: Sampled, *, now: float, step: float, pace: float) -> None:
        """Add a step's token and those of the steps before it, ``step`` seconds apart.

        A reader takes ``pace`` seconds for a token, from when it is there and read are those
        before it: the greater of two straight lines, so its ends tell.
        """
        self.output.extend(sampled.before)
        self.output.append(sampled.token_id)
        num_before = len(sampled.before)
        self.computed(num_before)
        if self.answer_start is not None:
            reading = (1 + num_before) * pace
            first_at = now - num_before * step
            self.in_hand_until = max(self.in_hand_until + reading, first_at + reading, now + pace)

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Token ids at positions ``start … stop - 1``."""
        prompt = self.request.prompt_token_ids
        if start >= len(prompt):
            return tuple(self.output[start - len(prompt) : stop - len(prompt)])
        if stop <= len(prompt):
            return prompt[start:stop]
        return (*prompt[start:], *self.output[: stop - len(prompt)])

    def finish_reason(self, eos_token_ids: frozenset[int], max_len: int) -> FinishReason | None:
        """Why the sequence ends with its last token, or None. ``max_len`` in tokens."""
        sampling, token_id = self.request.sampling, self.output[-1]
        if len(self.output) >= sampling.min_tokens:
            if not sampling.ignore_eos and token_id in eos_token_ids:
                return FinishReason.STOP
            if token_id in sampling.stop_token_ids:
                return FinishReason.STOP
        return FinishReason.LENGTH if self.is_full(max_len) else None

    def is_full(self, max_len: int) -> bool:
        """Whether it may not grow any longer; ``max_len`` in tokens."""
        return len(self.output) >= self.request.sampling.max_tokens or self.num_tokens >= max_len

    def held(self) -> HeldRequest:
        """As the scheduler is told of it."""
        return HeldRequest(
            key=self.key,
            request_id=self.request.request_id,
            unit=self.unit,
            num_tokens=self.num_tokens,
            awaiting_handoff=self.stage is Stage.HANDOFF and self.leaving is None,
            decoding=self.decoding,
            arriving=self.stage is Stage.ARRIVING,
        )
