"""The questions of all cases, in words and forms that the small model can answer.

It adds, sorts and counts. It was trained on no tool and no schema: forms here have few values each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SUM, TOTAL = "Add 17, 25, 8.", "50"
MESSAGES = [{"role": "user", "content": SUM}]
KEY = "none"
SECONDS = 100.0  # for one request
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
CITIES = ["Bern", "Oslo"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": CITIES}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


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
