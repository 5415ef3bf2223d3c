"""Cases of LangChain's client and of its agent."""

from __future__ import annotations

from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from .asked import CITY, KEY, SECONDS, SUM, TEXT, TOTAL, WEATHER_ASKED, At, cases
from .forms import JOHN, Person

STEPS = ("find_city", "look_up_weather", "write_report")


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is warm in {city}."


@tool
def find_city(country: Literal["Switzerland", "Norway"]) -> str:
    """Find the capital of a country."""
    return "Bern" if country == "Switzerland" else "Oslo"


@tool
def look_up_weather(city: Literal["Bern", "Oslo"]) -> str:
    """Look up the weather of a city."""
    return f"It is warm in {city}."


@tool
def write_report(warm: bool) -> str:
    """Write the report."""
    return f"The report says {'warm' if warm else 'cold'}."


def chat(at: At, **more: Any) -> ChatOpenAI:
    """Return the client."""
    fields = {"temperature": 0, "timeout": SECONDS, "max_retries": 0, **more}
    return ChatOpenAI(model=at.model, base_url=at.v1, api_key=KEY, **fields)


def invoke(at: At) -> None:
    assert chat(at).invoke(SUM).content == TOTAL


def stream(at: At) -> None:
    assert "".join(str(each.content) for each in chat(at).stream(SUM)) == TOTAL


def batch(at: At) -> None:
    assert [each.content for each in chat(at).batch([SUM, SUM])] == [TOTAL, TOTAL]


def usage(at: At) -> None:
    usage_fields = chat(at).invoke(SUM).usage_metadata
    assert usage_fields["output_token_details"]["reasoning"] > 0


def structured_output_by_schema(at: At) -> None:
    made = chat(at).with_structured_output(Person, method="json_schema")
    assert made.invoke(TEXT) == JOHN


def structured_output_by_a_call(at: At) -> None:
    made = chat(at).with_structured_output(Person, method="function_calling")
    assert made.invoke(TEXT) == JOHN


def bound_tools(at: At) -> None:
    (call,) = chat(at).bind_tools([get_weather]).invoke(WEATHER_ASKED).tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": CITY})


def agent(at: At) -> None:
    made = create_agent(chat(at, max_tokens=400), [get_weather])
    messages = made.invoke({"messages": [("user", WEATHER_ASKED)]})["messages"]
    assert [each.name for each in messages if each.type == "tool"] == ["get_weather"]
    assert "warm" in messages[-1].content


def embeddings(at: At) -> None:
    OpenAIEmbeddings(
        model=at.model, base_url=at.v1, api_key=KEY, check_embedding_ctx_length=False
    ).embed_query(SUM)


def agent_of_three_steps(at: At) -> None:
    @wrap_model_call
    def in_order(request: Any, handler: Any) -> Any:
        """Name the next tool, and none after the last: the model is too small to choose."""
        done = sum(message.type == "tool" for message in request.messages)
        choice = STEPS[done] if done < len(STEPS) else "none"
        return handler(request.override(tool_choice=choice))

    made = create_agent(
        chat(at, max_tokens=400),
        [find_city, look_up_weather, write_report],
        middleware=[in_order],
    )
    messages = made.invoke({"messages": [("user", SUM)]})["messages"]
    assert [each.name for each in messages if each.type == "tool"] == [*STEPS]
    assert messages[-1].type == "ai"
    assert not messages[-1].tool_calls


CASES = cases(
    *(invoke, stream, batch, usage, structured_output_by_schema, structured_output_by_a_call),
    *(bound_tools, agent, embeddings, agent_of_three_steps),
)
REFUSED = {"embeddings": "a server of chats and completions alone"}
