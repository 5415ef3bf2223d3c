"""The questions of all cases: sums, a person to extract, a weather to look up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SUM, TOTAL = "Add 17, 25, 8.", "50"
MESSAGES = [{"role": "user", "content": SUM}]
KEY = "none"
SECONDS = 100.0  # for one request
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
TEXT, NAME, AGE = "John Smith is 34 years old.", "John Smith", 34
EXTRACT = [{"role": "user", "content": TEXT}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}}
WEATHER_ASKED, CITY = "What is the weather in Paris?", "Paris"
ASK_WEATHER = [{"role": "user", "content": WEATHER_ASKED}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


class At(NamedTuple):
    """The cluster under test: its base URL, its model, and the folder of the tokenizer."""

    url: str
    model: str
    tokenizer: str

    @property
    def v1(self) -> str:
        """Return the base URL of OpenAI's routes."""
        return f"{self.url}/v1"


Figures = Mapping[str, Mapping[str, float]]
"""Figures by name, as a tool measured them (``client``) and as the gateway did (``gateway``)."""
Case = Callable[[At], Figures | None]


def cases(*functions: Case) -> Mapping[str, Case]:
    """Return the cases by their names in words."""
    return {each.__name__.strip("_").replace("_", " "): each for each in functions}
