"""The contents of one API call, from either edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.request import SamplingParams

_SEED_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages for the model's chat template, and options for it."""

    messages: Sequence[Mapping[str, Any]]
    template_options: Mapping[str, Any] = field(default_factory=dict)


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
    paced: bool = True
    """True if the gateway may hold answering tokens until a reader needs them."""
    request_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of ``Request`` that the client gave."""


@dataclass(frozen=True, slots=True)
class ReplyStyle:
    """The form in which an HTTP client wants its answer."""

    chat: bool
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    logprobs: bool = False

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
) -> SamplingParams:
    """Combine the client's fields (``said``) with the model's ``defaults`` and a ``seed``.

    Without max_tokens an output may have ``default_max_tokens``, or fill the context if that
    is 0 or does not fit.
    """
    chosen: dict[str, Any] = {**defaults, "seed": seed, **said}
    if "max_tokens" not in chosen:
        room = max(1, max_model_len - num_prompt_tokens)
        chosen["max_tokens"] = min(room, default_max_tokens or room)
    return SamplingParams(**chosen)


def with_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Return the same parameters with the seed of one of several choices."""
    if choice == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice) % _SEED_RANGE)
