"""A request, its sampling parameters, and the reasons why it ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headway.errors import Code, HeadwayError, invalid
from headway.service_class import NO_STANDING, Standing

MAX_LOGPROBS = 20
MAX_LEVELS = 64
"""Most of MemGuard's doubling levels: no output has 2^63 tokens."""
MAX_STOP_TOKEN_IDS = 64
MAX_GRAMMAR_CHARS = 2**16
MAX_BIASED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 2**16
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_BIAS = 100.0
MAX_SESSION_CHARS = 256
CLIENT_ID_END = "~"
"""A mark that ends a client's own id in a request's id; what follows makes it unique."""
_OUTPUT = re.compile(r"(.*[~-][0-9a-f]{8,})-[0-9]+")
"""One of several outputs of a call, whose id ends in hexadecimal digits."""


def call_of(request_id: str) -> str:
    """Return the id of the call that a request is an output of: its own, or that without a number.

    The outputs of a call with several are numbered from 0, behind its id and a dash.
    """
    match = _OUTPUT.fullmatch(request_id)
    return request_id if match is None else match[1]


def place_of(request_id: str) -> tuple[int, str]:
    """Return what sorts the outputs of a call: their numbers, then their ids."""
    number = request_id.removeprefix(call_of(request_id)).removeprefix("-")
    return (int(number) if number else 0), request_id


def is_named(request_id: str, asked: str) -> bool:
    """Return whether a request is meant by its id, by its call's, or by that of its client.

    Behind a client's own id, ``CLIENT_ID_END`` and the beginning of what makes it unique may stand.
    """
    if asked in (request_id, call_of(request_id)):
        return True
    if CLIENT_ID_END not in asked:
        return request_id.startswith(f"{asked}{CLIENT_ID_END}")
    return "-" not in asked.rpartition(CLIENT_ID_END)[2] and request_id.startswith(asked)


def check_session_id(session_id: str, param: str = "session_id") -> str:
    """Return a session's name; INVALID_ARGUMENT, by the name of its field, for one that is none."""
    if len(session_id) > MAX_SESSION_CHARS or not session_id.isprintable():
        limit = f"at most {MAX_SESSION_CHARS} printable characters: send a shorter name, or none"
        raise invalid(param, session_id[:100], limit)
    return session_id


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
class BadWord:
    """Tokens that may not be drawn one after the other."""

    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.token_ids) <= MAX_BAD_WORD_TOKENS:
            limit = f"from 1 to {MAX_BAD_WORD_TOKENS} tokens long"
            raise invalid("bad_words", len(self.token_ids), limit)


@dataclass(frozen=True, slots=True)
class Constraints:
    """Limits on the tokens that a request may draw; all but the grammar hold from its first."""

    grammar: str = ""
    """The grammar of its answer, in llguidance's form; "": none."""
    reasoning_start: tuple[int, ...] = ()
    """Tokens with which the output may begin a reasoning; (): the prompt has begun it."""
    reasoning_end: tuple[int, ...] = ()
    """Tokens that end the reasoning: the grammar holds after them. (): nothing reasons."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that may be drawn; (): all."""
    biased_token_ids: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()
    """Numbers added to the logits of ``biased_token_ids``, one each."""
    bad_words: tuple[BadWord, ...] = ()
    reasoning_budget: int | None = None
    """Most tokens of reasoning, its markers apart: its end is drawn then. None: any number."""

    def __post_init__(self) -> None:
        lengths = (
            ("grammar", len(self.grammar), MAX_GRAMMAR_CHARS),
            ("allowed_token_ids", len(self.allowed_token_ids), MAX_ALLOWED_TOKENS),
            ("logit_bias", len(self.biased_token_ids), MAX_BIASED_TOKENS),
            ("bad_words", len(self.bad_words), MAX_BAD_WORDS),
        )
        for name, length, most in lengths:
            if length > most:
                raise invalid(name, length, f"at most {most} long")
        if self.reasoning_budget is not None and not 0 <= self.reasoning_budget < 2**31:
            raise invalid("thinking_token_budget", self.reasoning_budget, "0 or more")
        if len(self.biases) != len(self.biased_token_ids):
            raise invalid("logit_bias", len(self.biases), "one number for each token")
        if self.allowed_token_ids and self.bad_words:
            bad = {word.token_ids[0] for word in self.bad_words if len(word.token_ids) == 1}
            if bad.issuperset(self.allowed_token_ids):
                raise HeadwayError(
                    Code.INVALID_ARGUMENT,
                    "bad_words forbid every token of allowed_token_ids: leave one of them out",
                    param="bad_words",
                )
        for bias in self.biases:
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                raise invalid("logit_bias", bias, f"from {-MAX_BIAS:g} to {MAX_BIAS:g}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for drawing the next token; values out of range are refused (HeadwayError).

    ``is_seeded``: the client chose the seed; every other request has one that was drawn for it.
    """

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
    num_prompt_logprobs: int | None = None
    constraints: Constraints | None = None
    is_seeded: bool = False

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
        for name in ("num_logprobs", "num_prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise invalid(name, count, f"from 0 to {MAX_LOGPROBS}")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            limit = f"at most {MAX_STOP_TOKEN_IDS} ids long"
            raise invalid("stop_token_ids", len(self.stop_token_ids), limit)

    @property
    def has_penalties(self) -> bool:
        """True if a penalty is on: drawing a token needs the tokens before it."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def reads_output(self) -> bool:
        """True if drawing a token needs the tokens before it."""
        return self.has_penalties or self.constraints is not None


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
    cache_salt: str = ""
    """A secret of those who may share cached prefixes with it; "": everybody without one."""
    session_id: str = ""
    """The client's name for the conversation that it belongs to, printable and at most 256
    characters long; "" where none was given. Equal names of two tenants are two sessions."""
    ends_session: bool = False
    """True if its session is over with it: its blocks are the first to go."""
    standing: Standing = NO_STANDING
    """The tenant that it counts for, and what it is promised."""
    adapter: str = ""
    """The adapter of the model (LoRA) that computes it; "": the model itself."""
    placed_on: tuple[str, ...] = ()
    """Workers that have this attempt, by the word of the leader that its gateway had before."""

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise invalid("prompt", "", "at least one token long")
        if not 0 <= self.levels_spent <= MAX_LEVELS:
            raise invalid("levels_spent", self.levels_spent, f"from 0 to {MAX_LEVELS}")
        if not 0 <= self.served < float("inf"):
            raise invalid("served", self.served, "a number of seconds from 0 on")
        check_session_id(self.session_id)

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
    prompt: tuple[TokenLogprobs, ...] = field(default=())
    """With an output's first token: those of the prompt's tokens, from the second on."""
