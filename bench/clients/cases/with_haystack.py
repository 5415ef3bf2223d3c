"""Cases of Haystack's chat generator."""

from __future__ import annotations

from typing import Any

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

from .asked import CITY, KEY, SECONDS, SUM, TOTAL, WEATHER, WEATHER_ASKED, At, cases


def generator(at: At, **more: Any) -> Any:
    """Return the generator."""
    return OpenAIChatGenerator(
        api_key=Secret.from_token(KEY),
        model=at.model,
        api_base_url=at.v1,
        timeout=SECONDS,
        max_retries=0,
        **more,
    )


def chat(at: At) -> None:
    made = generator(at, generation_kwargs={"temperature": 0})
    assert made.run([ChatMessage.from_user(SUM)])["replies"][0].text == TOTAL


def streamed(at: At) -> None:
    pieces: list[str] = []
    made = generator(at, streaming_callback=lambda chunk: pieces.append(chunk.content))
    made.run([ChatMessage.from_user(SUM)], generation_kwargs={"temperature": 0})
    assert "".join(pieces) == TOTAL


def tools(at: At) -> None:
    said = WEATHER["function"]
    tool = Tool(said["name"], said["description"], said["parameters"], lambda city: "sunny")
    made = generator(at, tools=[tool], generation_kwargs={"temperature": 0})
    (call,) = made.run([ChatMessage.from_user(WEATHER_ASKED)])["replies"][0].tool_calls
    assert call.arguments == {"city": CITY}


CASES = cases(chat, streamed, tools)
