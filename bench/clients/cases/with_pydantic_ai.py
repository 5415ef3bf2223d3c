"""Cases of Pydantic AI."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from .asked import KEY, SUM, TEXT, TOTAL, WEATHER_ASKED, At, cases
from .forms import JOHN, Person


def agent(at: At, **more: Any) -> Any:
    """Return an agent over the cluster."""
    model = OpenAIChatModel(at.model, provider=OpenAIProvider(base_url=at.v1, api_key=KEY))
    return Agent(model, model_settings={"temperature": 0, "timeout": 100.0}, **more)


def text(at: At) -> None:
    assert agent(at).run_sync(SUM).output == TOTAL


def typed_output(at: At) -> None:
    assert agent(at, output_type=Person).run_sync(TEXT).output == JOHN


def typed_output_by_a_form(at: At) -> None:
    assert agent(at, output_type=NativeOutput(Person)).run_sync(TEXT).output == JOHN


def tools(at: At) -> None:
    made = agent(at)

    @made.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        return f"It is warm in {city}."

    answer = made.run_sync(WEATHER_ASKED, usage_limits=UsageLimits(request_limit=4)).output
    assert "warm" in answer


CASES = cases(text, typed_output, typed_output_by_a_form, tools)
