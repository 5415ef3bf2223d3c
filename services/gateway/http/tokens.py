"""A text's or a chat's tokens, and back, as vLLM and Anthropic have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.gateway.anthropic.requests import parse_counted
from services.gateway.api_call import ChatEnd, ChatInput, Input
from services.gateway.calls import Calls
from services.gateway.openai.shapes import read
from services.gateway.openai.tokens import ChatToTokens, TextToTokens, TokensToText


def tokenize(calls: Calls, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tokens of a text or a chat; INVALID_ARGUMENT where they do not fit the model."""
    if "messages" in body:
        chat = read(ChatToTokens, body)
        preparation = calls.of(chat.model)
        strings, one = chat.return_token_strs, _chat_input(chat)
    else:
        said = read(TextToTokens, body)
        preparation = calls.of(said.model)
        strings, one = said.return_token_strs, said.prompt
    tokens, model = preparation.token_ids(one), preparation.model
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": model.max_model_len,
        "tokens": tokens,
        "token_strs": None,
    }
    if strings:
        answer["token_strs"] = [model.codec.token_text(token)[0] for token in tokens]
    return answer


def count_messages(calls: Calls, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the number of a chat's tokens; INVALID_ARGUMENT where they do not fit the model."""
    model, chat = parse_counted(body)
    return {"input_tokens": len(calls.of(model).token_ids(chat))}


def detokenize(calls: Calls, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text of tokens, special ones included."""
    asked = read(TokensToText, body)
    codec = calls.models.find(asked.model).codec
    tokens = tuple(asked.tokens)
    codec.check_ids(tokens, "tokens")
    return {"prompt": codec.decode(tokens)}


def _chat_input(chat: ChatToTokens) -> Input:
    tools = [tool.model_dump(exclude_none=True) for tool in chat.tools or ()]
    ending = ChatEnd.ANSWER if chat.add_generation_prompt else ChatEnd.MESSAGE
    if chat.continue_final_message:
        ending = ChatEnd.OPEN
    return ChatInput(chat.messages, chat.chat_template_kwargs, tools, ending)
