"""Cases of tools and of forms of the answer."""

from __future__ import annotations

import json
import re
from typing import Any

import openai

from .asked import CITIES, MESSAGES, NO_THINKING, SCHEMA, TOTAL, WEATHER, At, cases
from .forecast import Forecast
from .openai_chat import ask, client

STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
OTHER = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": SCHEMA}}
RESULT = [
    *MESSAGES,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]


def called(found: Any) -> list[Any]:
    """Return the calls of an answer, whose arguments are of the schema."""
    choice = found.choices[0]
    assert choice.finish_reason == "tool_calls", choice.finish_reason
    for call in choice.message.tool_calls:
        assert json.loads(call.function.arguments).get("city", CITIES[0]) in CITIES
    return list(choice.message.tool_calls)


def tools_that_may_be_called(at: At) -> None:
    assert ask(at, tools=[WEATHER], max_tokens=256).choices


def a_required_call(at: At) -> None:
    (call,) = called(ask(at, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False))
    assert call.id
    assert call.function.name == "weather"


def a_named_call(at: At) -> None:
    chosen = {"type": "function", "function": {"name": "weather"}}
    (call,) = called(ask(at, tools=[OTHER, WEATHER], tool_choice=chosen))
    assert call.function.name == "weather"


def no_call(at: At) -> None:
    assert ask(at, tools=[WEATHER], tool_choice="none").choices[0].message.content == TOTAL


def a_streamed_call(at: At) -> None:
    chosen = {"type": "function", "function": {"name": "weather"}}
    chunks = ask(at, tools=[WEATHER], tool_choice=chosen, stream=True)
    pieces = [call for each in chunks for call in each.choices[0].delta.tool_calls or ()]
    assert pieces[0].function.name == "weather"
    text = "".join(each.function.arguments or "" for each in pieces)
    assert json.loads(text)["city"] in CITIES


def one_call_alone(at: At) -> None:
    more = {"tool_choice": "required", "parallel_tool_calls": False}
    assert len(called(ask(at, tools=[WEATHER, OTHER], **more))) == 1


def result_of_a_call(at: At) -> None:
    assert ask(at, messages=RESULT, tools=[WEATHER], tool_choice="none").choices
    assert ask(at, messages=RESULT, max_tokens=256).choices


def strict_tools(at: At) -> None:
    assert ask(at, tools=[STRICT], max_tokens=256).choices


def a_strict_call_is_parsed(at: At) -> None:
    tool = openai.pydantic_function_tool(Forecast, name="weather")
    chosen = {"type": "function", "function": {"name": "weather"}}
    made = client(at).chat.completions
    found = made.parse(model=at.model, messages=MESSAGES, tools=[tool], tool_choice=chosen)
    assert found.choices[0].message.tool_calls[0].function.parsed_arguments.city in CITIES


def tools_beside_a_form(at: At) -> None:
    more = {"response_format": FORM, "extra_body": NO_THINKING}
    message = ask(at, tools=[WEATHER], **more).choices[0].message
    assert message.tool_calls or json.loads(message.content)["city"] in CITIES


def a_required_call_beside_a_form(at: At) -> None:
    assert called(
        ask(
            at,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            response_format=FORM,
        )
    )


def functions(at: At) -> None:
    ask(at, functions=[WEATHER["function"]], function_call={"name": "weather"})


def a_schema(at: At) -> None:
    assert json.loads(ask(at, response_format=FORM).choices[0].message.content)["city"] in CITIES


def a_streamed_schema(at: At) -> None:
    chunks = ask(at, response_format=FORM, stream=True)
    text = "".join(each.choices[0].delta.content or "" for each in chunks)
    assert json.loads(text)["city"] in CITIES


def any_object(at: At) -> None:
    found = ask(at, response_format={"type": "json_object"}, max_tokens=200, extra_body=NO_THINKING)
    choice = found.choices[0]
    assert choice.message.content.lstrip().startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


def a_parsed_form(at: At) -> None:
    made = client(at).chat.completions
    found = made.parse(model=at.model, messages=MESSAGES, response_format=Forecast)
    assert found.choices[0].message.parsed.city in CITIES


def a_parsed_stream(at: At) -> None:
    made = client(at).chat.completions
    with made.stream(model=at.model, messages=MESSAGES, response_format=Forecast) as stream:
        assert stream.get_final_completion().choices[0].message.parsed.city in CITIES


def a_choice(at: At) -> None:
    found = ask(at, extra_body={"structured_outputs": {"choice": CITIES}})
    assert found.choices[0].message.content in CITIES


def an_expression(at: At) -> None:
    found = ask(at, extra_body={"guided_regex": "[0-9]{3}"})
    assert re.fullmatch("[0-9]{3}", found.choices[0].message.content)


def call_of_a_response(at: At) -> None:
    tool = {"type": "function", **WEATHER["function"]}
    more = {"tools": [tool], "tool_choice": {"type": "function", "name": "weather"}}
    found = client(at).responses.create(model=at.model, input="Go.", **more)
    (call,) = [each for each in found.output if each.type == "function_call"]
    assert json.loads(call.arguments)["city"] in CITIES


def parsed_response(at: At) -> None:
    found = client(at).responses.parse(model=at.model, input="Go.", text_format=Forecast)
    assert found.output_parsed.city in CITIES


def search_in_the_web(at: At) -> None:
    client(at).responses.create(model=at.model, input="Go.", tools=[{"type": "web_search"}])


TOOLS = cases(
    *(tools_that_may_be_called, a_required_call, a_named_call, no_call, a_streamed_call),
    *(one_call_alone, result_of_a_call, strict_tools),
    *(a_strict_call_is_parsed, tools_beside_a_form, a_required_call_beside_a_form, functions),
    *(a_schema, a_streamed_schema, any_object, a_parsed_form),
    *(a_parsed_stream, a_choice, an_expression, call_of_a_response, parsed_response),
    search_in_the_web,
)
REFUSED_TOOLS = {
    "functions": "OpenAI's older name for `tools`, which are there",
    "search in the web": "tools are the client's: no server's own ones",
}
