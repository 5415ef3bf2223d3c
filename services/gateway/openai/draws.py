"""The fields that bound which tokens may be drawn: OpenAI's ``logit_bias``, and vLLM's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from headway.errors import Code, HeadwayError
from headway.request import MAX_ALLOWED_TOKENS, MAX_BAD_WORDS, MAX_BIAS, MAX_BIASED_TOKENS
from services.gateway.openai.shapes import Fields

TokenId = Annotated[int, Field(ge=0, lt=2**32)]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS, allow_inf_nan=False)]


def _check_number(biases: Any) -> Any:
    """Return them, none looked at; ValueError for too many."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASED_TOKENS:
        raise ValueError(f"it should have at most {MAX_BIASED_TOKENS} items")
    return biases


class Draws(Fields):
    """The part of a body that bounds the draws."""

    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,10}$")], Bias],
            Field(max_length=MAX_BIASED_TOKENS),
            BeforeValidator(_check_number),
        ]
        | None
    ) = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_TOKENS, fail_fast=True)]
        | None
    ) = None
    bad_words: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=256)]],
            Field(max_length=MAX_BAD_WORDS),
        ]
        | None
    ) = None


def bounds_of(fields: Draws, *, has_form: bool) -> dict[str, Any]:
    """Return the fields of ``Constraints`` that a body gives, all but its bad words."""
    bounds: dict[str, Any] = {}
    if fields.logit_bias:
        bounds["biased_token_ids"] = tuple(int(token) for token in fields.logit_bias)
        bounds["biases"] = tuple(fields.logit_bias.values())
    if fields.allowed_token_ids:
        if has_form:
            message = "allowed_token_ids may forbid what the form needs: leave out one of them"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="allowed_token_ids")
        bounds["allowed_token_ids"] = tuple(dict.fromkeys(fields.allowed_token_ids))
    return bounds
