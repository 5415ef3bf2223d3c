"""Cases of litellm, under both of its names for such servers."""

from __future__ import annotations

import json
from typing import Any

import litellm

from .asked import CITIES, KEY, MESSAGES, SCHEMA, SECONDS, TOTAL, WEATHER, At, cases

NAMED = {"type": "function", "function": {"name": "weather"}}
FORM = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA, "strict": True}}


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
    found = ask(at)
    assert found.usage.total_tokens > 0
    assert found.choices[0].message.reasoning_content


def tools(at: At) -> None:
    (call,) = ask(at, tools=[WEATHER], tool_choice=NAMED).choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in CITIES


def response_format(at: At) -> None:
    found = ask(at, response_format=FORM)
    assert json.loads(found.choices[0].message.content)["city"] in CITIES


CASES = cases(
    completion, completion_as_openai, streamed, usage_and_reasoning, tools, response_format
)
