"""Cases of litellm, under both of its names for such servers."""

from __future__ import annotations

import json
from typing import Any

import litellm

from .asked import (
    ASK_WEATHER,
    CITY,
    EXTRACT,
    FORM,
    KEY,
    MESSAGES,
    NAME,
    SECONDS,
    TOTAL,
    WEATHER,
    At,
    cases,
)


def ask(at: At, provider: str = "hosted_vllm", **more: Any) -> Any:
    """Ask for a sum."""
    fields = {"messages": MESSAGES, "temperature": 0, "timeout": SECONDS, **more}
    model = f"{provider}/{at.model}"
    return litellm.completion(model=model, api_base=at.v1, api_key=KEY, **fields)


def completion(at: At) -> None:
    assert ask(at).choices[0].message.content == TOTAL


def completion_as_openai(at: At) -> None:
    assert ask(at, "openai").choices[0].message.content == TOTAL


def streamed(at: At) -> None:
    chunks = ask(at, stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == TOTAL


def usage_and_reasoning(at: At) -> None:
    reply = ask(at)
    assert reply.usage.total_tokens > 0
    assert reply.choices[0].message.reasoning_content


def tools(at: At) -> None:
    (call,) = ask(at, messages=ASK_WEATHER, tools=[WEATHER]).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": CITY}


def response_format(at: At) -> None:
    answer = ask(at, messages=EXTRACT, response_format=FORM)
    assert json.loads(answer.choices[0].message.content)["name"] == NAME


CASES = cases(
    completion, completion_as_openai, streamed, usage_and_reasoning, tools, response_format
)
