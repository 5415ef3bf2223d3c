"""Cases of LlamaIndex's client for such servers."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from .asked import KEY, SECONDS, SUM, TOTAL, At, cases


def llm(at: At) -> Any:
    """Return the client."""
    return OpenAILike(
        model=at.model,
        api_base=at.v1,
        api_key=KEY,
        is_chat_model=True,
        temperature=0,
        timeout=SECONDS,
        max_retries=0,
        max_tokens=512,
    )


def chat(at: At) -> None:
    assert llm(at).chat([ChatMessage(role="user", content=SUM)]).message.content == TOTAL


def streamed_chat(at: At) -> None:
    *_, last = llm(at).stream_chat([ChatMessage(role="user", content=SUM)])
    assert last.message.content == TOTAL


def complete(at: At) -> None:
    assert llm(at).complete(SUM).text == TOTAL


CASES = cases(chat, streamed_chat, complete)
