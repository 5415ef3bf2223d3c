"""Cases of OpenAI's agents SDK, over both of its APIs."""

from __future__ import annotations

from typing import Any, Literal

import agents
from openai import AsyncOpenAI

from .asked import KEY, SECONDS, SUM, TEXT, TOTAL, WEATHER_ASKED, At, cases
from .forms import JOHN, Person

STEPS = ("find_city", "look_up_weather", "write_report")


@agents.function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is warm in {city}."


@agents.function_tool
def find_city(country: Literal["Switzerland", "Norway"]) -> str:
    """Find the capital of a country."""
    return "Bern" if country == "Switzerland" else "Oslo"


@agents.function_tool
def look_up_weather(city: Literal["Bern", "Oslo"]) -> str:
    """Look up the weather of a city."""
    return f"It is warm in {city}."


@agents.function_tool
def write_report(warm: bool) -> str:
    """Write the report."""
    return f"The report says {'warm' if warm else 'cold'}."


def run(at: At, api: str, text: str = SUM, **more: Any) -> Any:
    """Run an agent on a text."""
    made = AsyncOpenAI(base_url=at.v1, api_key=KEY, timeout=SECONDS, max_retries=0)
    agents.set_default_openai_client(made, use_for_tracing=False)
    agents.set_default_openai_api(api)
    agents.set_tracing_disabled(True)
    settings = more.pop("model_settings", agents.ModelSettings(temperature=0))
    hooks = more.pop("hooks", None)
    made_agent = agents.Agent(name="clerk", model=at.model, model_settings=settings, **more)
    return agents.Runner.run_sync(made_agent, text, max_turns=8, hooks=hooks)


def chat_completions(at: At) -> None:
    assert run(at, "chat_completions").final_output == TOTAL


def responses(at: At) -> None:
    assert run(at, "responses").final_output == TOTAL


def _tells_weather(answer: Any) -> None:
    kinds = [each.type for each in answer.new_items if each.type.startswith("tool")]
    assert kinds == ["tool_call_item", "tool_call_output_item"], kinds
    assert "warm" in answer.final_output


def tools(at: At) -> None:
    _tells_weather(run(at, "chat_completions", WEATHER_ASKED, tools=[get_weather]))


def tools_over_responses(at: At) -> None:
    _tells_weather(run(at, "responses", WEATHER_ASKED, tools=[get_weather]))


def typed_output(at: At) -> None:
    assert run(at, "chat_completions", TEXT, output_type=Person).final_output == JOHN


def agent_of_three_steps(at: At) -> None:
    class InOrder(agents.RunHooks[Any]):
        """The order of the tools: the model is too small to choose."""

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            after = STEPS.index(tool.name) + 1
            agent.model_settings.tool_choice = STEPS[after] if after < len(STEPS) else "none"

    settings = agents.ModelSettings(temperature=0, tool_choice=STEPS[0], max_tokens=400)
    agent_run = run(
        at,
        "chat_completions",
        tools=[find_city, look_up_weather, write_report],
        model_settings=settings,
        reset_tool_choice=False,
        hooks=InOrder(),
    )
    calls = [each for each in agent_run.new_items if each.type == "tool_call_item"]
    assert [each.raw_item.name for each in calls] == [*STEPS]
    assert agent_run.new_items[-1].type == "message_output_item"


CASES = cases(
    *(chat_completions, responses, tools, tools_over_responses, typed_output),
    agent_of_three_steps,
)
