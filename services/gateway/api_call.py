"""The contents of one API call, from either edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from headway.request import SamplingParams
from services.gateway.grammars import Grammar
from services.gateway.tool_calls import Format

_SEED_RANGE = 2**64


class ChatEnd(Enum):
    """The end of a rendered chat."""

    ANSWER = "answer"  # where the assistant's answer begins
    MESSAGE = "message"  # after the last message
    OPEN = "open"  # inside the last message, which goes on


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages for the model's chat template, and options for it."""

    messages: Sequence[Mapping[str, Any]]
    template_options: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    ending: ChatEnd = ChatEnd.ANSWER
    template: str = ""
    """The client's own chat template; "": the model's."""


class ToolUse(NamedTuple):
    """How calls are read from an answer."""

    form: Format | None
    """The format that the client forces; None: the model's own."""
    several: bool
    """True if an answer may have more than one call; the others are dropped."""
    offered: tuple[Mapping[str, Any], ...] = ()
    """OpenAI's ``function`` objects among which the model chooses; (): the client has chosen."""

    @property
    def is_strict(self) -> bool:
        """True if calls of an offered function have to follow its schema."""
        return any(tool.get("strict") for tool in self.offered)


class SessionAsk(NamedTuple):
    """The words of a call's body on its session."""

    named: str = ""
    """The name that it gives; "": none, so that a header may."""
    implied: str = ""
    """The name where neither body nor headers give one: of a cache, or of what it continues."""
    ends: bool = False
    """True if the session is over with it."""
    max_turns: int = 0
    """The session is over with the turn of this number; 0: no bound."""


NO_SESSION = SessionAsk()


class ResponseHistory(NamedTuple):
    """The items of a response and of all before it: what a later one continues."""

    items: tuple[bytes, ...] = ()
    """In JSON, each by itself: as objects they may take twenty times as much memory."""
    num_bytes: int = 0
    """Memory that they take, about."""
    session_id: str = ""


Input = ChatInput | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One or more inputs, and the outputs wanted for them."""

    model: str
    inputs: tuple[Input, ...]
    sampling: Mapping[str, Any]
    """Fields of ``SamplingParams`` that the client gave; the model has defaults for the others."""
    num_choices: int = 1
    """Outputs for each input."""
    stops: tuple[str, ...] = ()
    split_reasoning: bool = False
    """True if reasoning is kept apart from the answer."""
    default_max_tokens: int = 0
    """Limit on output tokens if the client gives none; 0: as many as fit."""
    most_tokens: int = 0
    """The most that an output may have where the client gives no limit; 0: any number."""
    fills_context: bool = False
    """True if the output ends where the context does, though the client's limit is beyond."""
    paced: bool = True
    """True if the gateway may hold answering tokens until a reader needs them."""
    thinking_budget: int | None = None
    """Most tokens of reasoning; None: any number, or as ``reasoning_effort`` says."""
    reasoning_effort: str = ""
    """OpenAI's word for it; the chat template gets it too."""
    grammar: Grammar | None = None
    """The form of every answer, not yet checked."""
    tools: ToolUse | None = None
    """How calls are read from the answers; None: they are text."""
    bounds: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``Constraints`` that the client gave."""
    bad_words: tuple[str, ...] = ()
    """Texts that no answer may contain."""
    keeps_stop: bool = False
    """True if a stop string that was found is shown."""
    shows_special: bool = False
    """True if special tokens are shown as text, but for one that ends an output."""
    service_class: str = ""
    """The class that it asks for by name; "": none."""
    priority: int | None = None
    """vLLM's, which stands for a class; None: not given."""
    request_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of ``Request`` that the client gave."""
    session: SessionAsk = NO_SESSION
    client_id: str = ""
    """The client's own id of it, which a header's goes before; "": none."""
    truncate: int | None = None
    """Most tokens of a prompt, whose last ones are kept; -1: as many as fit; None: it is whole."""

    @property
    def session_id(self) -> str:
        """The name of its session once headers were read, "" without one."""
        return str(self.request_fields.get("session_id", ""))

    @property
    def needs_grammar(self) -> bool:
        """True if a grammar is compiled for it, which may take a second: do that in a thread."""
        return self.grammar is not None or (self.tools is not None and self.tools.is_strict)


@dataclass(frozen=True, slots=True)
class ReplyStyle:
    """The form in which an HTTP client wants its answer."""

    chat: bool
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    logprobs: bool = False
    tokens_as_ids: bool = False
    """True if log probabilities name tokens by their ids."""
    continuous_usage: bool = False
    """True if every event of a stream has the usage so far."""
    echo: bool = False
    """True if a completion's text begins with its prompt."""
    prompt_alone: bool = False
    """True if nothing is generated for the client (``max_tokens: 0``)."""
    prompt_logprobs: bool = False
    """True if the log probabilities of the prompt come in vLLM's field."""
    include_timings: bool = False
    """True if the last usage says what the time of each output consisted of."""
    responses: bool = False
    """True for the events and items of ``/v1/responses``."""
    messages: bool = False
    """True for the events and blocks of ``/v1/messages``."""
    max_tokens: int = 0
    """The client's limit on output tokens, where the answer says if it was reached."""
    echoed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request that its response repeats."""
    history: ResponseHistory | None = None
    """What comes before its answer, to be kept with it; None: it is not stored."""

    def param(self, name: str | None) -> str | None:
        """Return the field's name in this API: a chat's prompt is its messages."""
        return "messages" if self.chat and name == "prompt" else name


def complete_sampling(
    said: Mapping[str, Any],
    defaults: Mapping[str, float],
    *,
    default_max_tokens: int,
    num_prompt_tokens: int,
    max_model_len: int,
    seed: int,
    fills_context: bool = False,
) -> SamplingParams:
    """Combine the client's fields (``said``) with the model's ``defaults`` and a ``seed``.

    Without max_tokens an output may have ``default_max_tokens``, or fill the context if that
    is 0 or does not fit. ``fills_context``: so it may where max_tokens does not fit.
    """
    chosen: dict[str, Any] = {**defaults, "seed": seed, **said}
    if fills_context or "max_tokens" not in chosen:
        room = max(1, max_model_len - num_prompt_tokens)
        chosen["max_tokens"] = min(room, chosen.get("max_tokens", default_max_tokens) or room)
    return SamplingParams(**chosen, is_seeded="seed" in said)


def with_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Return the same parameters with the seed of one of several choices."""
    if choice == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice) % _SEED_RANGE)
