"""One request on a worker: its tokens, and parts that each belong to one module."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from math import inf

from headway.blocks import BlockHash, PrefixNamer
from headway.core.worker.lifecycle import Life, Stage
from headway.messages import Handoff, HeldRequest
from headway.request import FinishReason, Phase, Request, StreamKey


@dataclass(slots=True, eq=False)
class Kv:
    """The KV of tokens ``[0, num_computed)``: in blocks or in host memory (``unit.py``)."""

    blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    hashes: list[BlockHash] = field(default_factory=list)
    """Names of its full blocks, if prefixes are cached."""
    namer: PrefixNamer | None = None
    """Names further blocks, behind those of ``hashes``; None where the simulator named all."""
    num_named: int = 0
    """Blocks whose names are in the pool."""
    num_hit_tokens: int = 0
    """Cached tokens, on the device or in host memory, when it was first admitted or began to wait.
    """
    making: BlockHash = None
    """Name of the block that it computes next while its prompt lacks tokens, else None."""
    is_returning: bool = False
    """True while a pass copies it back from host memory: its blocks may not be read yet."""


@dataclass(slots=True, eq=False)
class Departure:
    """A request's move to another worker, from the order to the end (``departures.py``)."""

    handoff: Handoff
    """The newest order."""
    is_prefilled: bool
    """True if it was waiting for the order; a decoding request keeps running."""
    num_rounds: int = 0
    num_sent: int = 0
    """Tokens whose KV has been sent or is in the current round."""
    sending: list[int] = field(default_factory=list)
    """Blocks of the current round; the sender holds references of its own."""
    is_stopping: bool = False
    """True if the sender has been told to abort."""
    began_under: int = 0
    """Fencing token by which its KV was offered to the target."""

    def repeat(self, order: Handoff) -> None:
        """Take a newer leader's order for the same move; another target is ignored."""
        target = (self.handoff.target_worker_id, self.handoff.target_unit)
        if target == (order.target_worker_id, order.target_unit):
            self.handoff = order


@dataclass(slots=True, eq=False)
class Length:
    """The predicted output length, in tokens (``prediction.py``)."""

    total: float | None = None
    """Predicted output tokens."""
    true_total: int | None = None
    """The true output tokens, in the simulator."""
    estimated_at: int = 0
    """Output tokens at the last estimate."""
    prediction: float | None = None
    """Remaining tokens in the predictor's last answer."""
    predicted_at: int = 0
    """Output tokens when that answer was requested."""
    asked_at: int | None = None
    """Output tokens when the predictor was last asked."""


@dataclass(slots=True, eq=False)
class Reader:
    """The reading position of the client (``reading.py``)."""

    answer_start: int | None = 0
    """Output tokens before the answer; None while it reasons."""
    in_hand_until: float = -inf


@dataclass(slots=True, eq=False)
class Sequence(Life):
    """One request on this worker. A batching policy reads it as a ``Candidate``."""

    request: Request
    unit: int
    output: list[int]
    """Output tokens of all attempts."""
    length: Length
    reader: Reader
    num_cached_tokens: int = 0
    """Tokens of the prompt that this pool has cached."""
    hands_off: bool = False
    """True if another worker is to decode it."""
    kv: Kv = field(default_factory=Kv)
    departure: Departure | None = field(default=None, init=False)
    is_told: bool = field(default=False, init=False)
    """True if the scheduler knows that it arrives or can move."""
    num_preemptions: int = field(default=0, init=False)
    num_voluntary: int = field(default=0, init=False)
    """Number of preemptions for a better request."""
    levels_spent: int = field(init=False)
    """Levels whose credit it has spent, here or on other workers (MemGuard)."""
    served: float = field(init=False)
    """Seconds of the passes that it took part in, here and on other workers."""
    num_unsent: int = field(default=0, init=False)
    """Newest output tokens that its client has not been sent (``clock.py``)."""
    num_fills: int | None = field(default=None, init=False)
    """Passes since it got blocks; None once it has computed all of its tokens (``news.py``)."""
    attained_tokens: int = field(init=False)
    key: StreamKey = field(init=False)
    """The attempt's name across the cluster."""

    def __post_init__(self) -> None:
        self.key = self.request.key
        self.levels_spent, self.served = self.request.levels_spent, self.request.served
        # Tokens generated elsewhere were computed there, except the last one.
        seen = self.num_tokens - 1 if self.output else 0
        self.attained_tokens = max(0, seen - self.num_cached_tokens)

    # --- what a batching policy reads -------------------------------------------------

    @property
    def tenant(self) -> str:
        """The tenant that it counts for."""
        return self.request.standing.tenant

    @property
    def arrival_at(self) -> float:
        """Arrival at the gateway, seconds since the epoch."""
        return self.request.arrival_at

    @property
    def due_at(self) -> float:
        """Instant at which its class has its first token due; without a class, its arrival."""
        service = self.request.standing.service
        return self.arrival_at + (service.ttft or 0.0 if service is not None else 0.0)

    @property
    def answer_due_at(self) -> float:
        """Instant at which its class has its first answering token due; inf if it has none."""
        service = self.request.standing.service
        promised = None if service is None else service.ttfat
        return inf if promised is None else self.arrival_at + promised

    @property
    def yields(self) -> bool:
        """True if its class takes what others leave."""
        return self.request.standing.yields

    @property
    def running(self) -> bool:
        """True if it holds blocks."""
        return self.stage is not Stage.WAITING and self.stage is not Stage.SWAPPING_OUT

    @property
    def decoding(self) -> bool:
        """True if one more computed token yields one more drawn token."""
        return self.kv.num_computed > 0 and self.num_remaining == 1

    @property
    def num_hit_tokens(self) -> int:
        """Prompt tokens whose KV its unit had cached when it came or was admitted."""
        return self.kv.num_hit_tokens

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt as its client sent it."""
        return len(self.request.prompt_token_ids)

    @property
    def num_drawn(self) -> int:
        """Output tokens that were drawn here."""
        return len(self.output) - len(self.request.output_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all attempts."""
        return len(self.output)

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose KV is computed."""
        return self.kv.num_computed

    @property
    def phase(self) -> Phase:
        """The phase of its reader; a recompute does not change it."""
        if not self.output:
            return Phase.PREFILL
        return Phase.REASONING if self.reader.answer_start is None else Phase.ANSWERING

    @property
    def num_phase_tokens(self) -> int:
        """Tokens since its phase began: computed ones in prefill, else generated ones."""
        if not self.output:
            return self.kv.num_computed
        return len(self.output) - (self.reader.answer_start or 0)

    @property
    def reasons(self) -> bool:
        """True if its output begins with reasoning."""
        return self.request.reasons

    @property
    def opens_answer(self) -> bool:
        """True if its next token is the first that its reader sees."""
        return self.request.is_read and self.reader.answer_start == len(self.output)

    @property
    def is_read(self) -> bool:
        """True if its client reads the answer as it comes."""
        return self.request.is_read

    @property
    def in_hand_until(self) -> float:
        """Instant when its reader runs out of tokens, in seconds since the epoch."""
        return self.reader.in_hand_until

    @property
    def predicted_remaining(self) -> float | None:
        """Predicted remaining output tokens; 0 if it has outlived the prediction."""
        total = self.length.total
        return None if total is None else max(0.0, total - len(self.output))

    @property
    def prediction(self) -> float | None:
        """Remaining tokens in the predictor's last answer."""
        return self.length.prediction

    @property
    def num_tokens_since_prediction(self) -> int:
        """Output tokens since the predictor's last answer."""
        return len(self.output) - self.length.predicted_at

    @property
    def true_remaining(self) -> int | None:
        """True number of remaining output tokens (the simulator)."""
        total = self.length.true_total
        return None if total is None else total - len(self.output)

    # --- tokens -----------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.request.prompt_token_ids) + len(self.output)

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return self.num_tokens - self.kv.num_computed

    @property
    def num_queued(self) -> int:
        """Waiting tokens that need computing: cached ones do not count."""
        kv = self.kv
        num_hit = 0 if kv.num_computed or self.running else kv.num_hit_tokens
        return self.num_remaining - num_hit

    @property
    def num_lost(self) -> int:
        """Tokens that are to be computed again, of a preempted request."""
        return self.num_tokens if self.num_preemptions and not self.kv.num_computed else 0

    @property
    def is_scored(self) -> bool:
        """True if its prompt's log probabilities are computed with it."""
        return self.request.sampling.num_prompt_logprobs is not None and not self.output

    @property
    def may_join(self) -> bool:
        """True if each of the next passes computes one token of it, and nothing else happens."""
        if not self.output or self.hands_off or self.departure is not None:
            return False
        return self.stage is Stage.RUNNING and self.num_remaining == 1

    @property
    def is_leaving(self) -> bool:
        """True if it was ordered to leave and still will."""
        return self.departure is not None and not self.departure.is_stopping

    def computed(self, num_tokens: int) -> None:
        """Note that this many more tokens have their KV."""
        kv = self.kv
        kv.num_computed += num_tokens
        attained = kv.num_computed - self.num_cached_tokens
        if attained > self.attained_tokens:
            self.attained_tokens = attained

    def tokens(self, start: int, stop: int) -> abc.Sequence[int]:
        """Return the token ids at positions ``start … stop - 1``."""
        prompt = self.request.prompt_token_ids
        if start >= len(prompt):
            return tuple(self.output[start - len(prompt) : stop - len(prompt)])
        if stop <= len(prompt):
            return prompt[start:stop]
        return (*prompt[start:], *self.output[: stop - len(prompt)])

    def finish_reason(self, eos_token_ids: frozenset[int], max_len: int) -> FinishReason | None:
        """Return the reason why it ends with its last token, or None. ``max_len`` in tokens."""
        sampling, token_id = self.request.sampling, self.output[-1]
        if len(self.output) >= sampling.min_tokens:
            if not sampling.ignore_eos and token_id in eos_token_ids:
                return FinishReason.STOP
            if token_id in sampling.stop_token_ids:
                return FinishReason.STOP
        return FinishReason.LENGTH if self.is_full(max_len) else None

    def is_full(self, max_len: float) -> bool:
        """Return whether it has reached its greatest length. ``max_len`` in tokens."""
        return len(self.output) >= self.request.sampling.max_tokens or self.num_tokens >= max_len

    def num_left(self, max_len: int) -> int:
        """Return how many more tokens it may draw. ``max_len`` in tokens."""
        return min(self.request.sampling.max_tokens - len(self.output), max_len - self.num_tokens)

    def held(self) -> HeldRequest:
        """Return its description for the scheduler."""
        departure = self.departure
        awaiting = departure.is_prefilled if departure else self.stage is Stage.PREFILLED
        return HeldRequest(
            key=self.key,
            request_id=self.request.request_id,
            unit=self.unit,
            num_tokens=self.num_tokens,
            awaiting_handoff=awaiting,
            decoding=self.decoding,
            arriving=self.stage is Stage.ARRIVING,
            predicted_remaining=self.predicted_remaining or 0.0,
        )
