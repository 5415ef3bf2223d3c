"""Cases of Pydantic AI."""

from __future__ import annotations

from typing import Any, Literal

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from .asked import CITIES, KEY, SUM, TOTAL, At, cases
from .forecast import Forecast


def agent(at: At, **more: Any) -> Any:
    """Return an agent over the cluster."""
    model = OpenAIChatModel(at.model, provider=OpenAIProvider(base_url=at.v1, api_key=KEY))
    return Agent(model, model_settings={"temperature": 0, "timeout": 100.0}, **more)


def text(at: At) -> None:
    assert agent(at).run_sync(SUM).output == TOTAL


def typed_output(at: At) -> None:
    assert agent(at, output_type=Forecast).run_sync(SUM).output.city in CITIES


def typed_output_by_a_form(at: At) -> None:
    assert agent(at, output_type=NativeOutput(Forecast)).run_sync(SUM).output.city in CITIES


def tools(at: At) -> None:
    made = agent(at)

    @made.tool_plain
    def weather(city: Literal["Bern", "Oslo"]) -> str:
        """Tell the weather of a city."""
        return f"It is warm in {city}."

    assert made.run_sync(SUM, usage_limits=UsageLimits(request_limit=4)).output


CASES = cases(text, typed_output, typed_output_by_a_form, tools)
