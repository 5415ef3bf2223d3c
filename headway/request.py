"""A request, its sampling parameters, and the reasons why it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headway.errors import invalid

MAX_LOGPROBS = 20
MAX_LEVELS = 64
"""Most of MemGuard's doubling levels: no output has 2^63 tokens."""
MAX_STOP_TOKEN_IDS = 64


class FinishReason(Enum):
    """The reason why generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Phase(Enum):
    """The phase of a request as its reader sees it (PASCAL); the first token ends the prefill."""

    PREFILL = "prefill"
    REASONING = "reasoning"  # generates tokens that the reader does not see
    ANSWERING = "answering"


class StreamKey(NamedTuple):
    """The name of one attempt at one request across the whole cluster."""

    gateway_id: str
    stream_id: int


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for drawing the next token; values out of range are refused (HeadwayError)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None

    def __post_init__(self) -> None:
        # Written so that NaN fails every check.
        checks: tuple[tuple[str, float, bool, str], ...] = (
            ("temperature", self.temperature, 0.0 <= self.temperature <= 2.0, "from 0 to 2"),
            ("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "over 0 and at most 1"),
            ("top_k", self.top_k, 0 <= self.top_k < 2**31, "0 (off) or a positive count"),
            ("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "from 0 to 1"),
            ("seed", self.seed, 0 <= self.seed < 2**64, "from 0 to 2^64 - 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                0.0 < self.repetition_penalty <= 2.0,
                "over 0 and at most 2",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                -2.0 <= self.presence_penalty <= 2.0,
                "from -2 to 2",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                -2.0 <= self.frequency_penalty <= 2.0,
                "from -2 to 2",
            ),
            ("max_tokens", self.max_tokens, 1 <= self.max_tokens < 2**31, "at least 1"),
            (
                "min_tokens",
                self.min_tokens,
                0 <= self.min_tokens <= self.max_tokens,
                f"from 0 to max_tokens ({self.max_tokens})",
            ),
        )
        for name, value, holds, limit in checks:
            if not holds:
                raise invalid(name, value, limit)
        if self.num_logprobs is not None and not 0 <= self.num_logprobs <= MAX_LOGPROBS:
            raise invalid("num_logprobs", self.num_logprobs, f"from 0 to {MAX_LOGPROBS}")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            limit = f"at most {MAX_STOP_TOKEN_IDS} ids long"
            raise invalid("stop_token_ids", len(self.stop_token_ids), limit)

    @property
    def has_penalties(self) -> bool:
        """True if drawing a token needs the tokens before it."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt at one request. The gateway's core fills in the fields of the attempt."""

    request_id: str
    model: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    arrival_at: float
    """Seconds since the epoch by this host's clock, like ``deadline_at`` (``headway.instants``)."""

    attempt: int = 0
    stream_id: int = 0
    gateway_id: str = ""
    gateway_address: str = ""
    deadline_at: float = float("inf")
    output_token_ids: tuple[int, ...] = ()
    """Tokens of earlier attempts: generation continues after them."""
    predicted_output_tokens: float = 0.0
    """Expected output tokens; 0 if unknown."""
    is_burst: bool = False
    """True if it came in excess of the running mean of traffic."""
    reasons: bool = False
    """True if reasoning, up to the model's marker, comes before its answer."""
    is_predicted: bool = False
    """True if ``predicted_output_tokens`` is the predictor's own figure for this request."""
    is_read: bool = True
    """True if its client reads the answer as it comes. Others have no reader's clock: they do not
    stream, have stop strings, or opted out of pacing."""

    levels_spent: int = 0
    """MemGuard's levels whose one voluntary preemption it has had, counted from the lowest."""
    served: float = 0.0
    """Seconds of the passes that it took part in on earlier workers."""

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise invalid("prompt", "", "at least one token long")
        if not 0 <= self.levels_spent <= MAX_LEVELS:
            raise invalid("levels_spent", self.levels_spent, f"from 0 to {MAX_LEVELS}")
        if not 0 <= self.served < float("inf"):
            raise invalid("served", self.served, "a number of seconds from 0 on")

    @property
    def key(self) -> StreamKey:
        """This attempt's name across the cluster."""
        return StreamKey(self.gateway_id, self.stream_id)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far, which a prefill has to compute."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities (nats) of one drawn token and of the best alternatives, best first."""

    logprob: float
    top_token_ids: tuple[int, ...] = field(default=())
    top_logprobs: tuple[float, ...] = field(default=())
