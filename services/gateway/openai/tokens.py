"""Bodies of ``/tokenize`` and ``/detokenize``, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from services.gateway.openai.messages import Conversation, Tools
from services.gateway.openai.shapes import Fields, Neutral, Text


class TextToTokens(Fields):
    """A body of ``POST /tokenize`` with a text."""

    neutral: ClassVar[Neutral] = {"add_special_tokens": (True,)}
    model: Text | None = None
    prompt: Text
    return_token_strs: bool = False


class ChatToTokens(Conversation, Tools):
    """A body of ``POST /tokenize`` with a chat."""

    neutral: ClassVar[Neutral] = {"add_special_tokens": (False,)}
    model: Text | None = None
    chat_template_kwargs: dict[str, Any] = Field({})
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False


class TokensToText(Fields):
    """A body of ``POST /detokenize``."""

    model: Text | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
