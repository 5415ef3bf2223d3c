"""Cases of tools and of forms of the answer."""

from __future__ import annotations

import json
import re
from typing import Any

import openai

from .asked import (
    ASK_WEATHER,
    CITY,
    EXTRACT,
    FORM,
    NAMED,
    NO_THINKING,
    TEXT,
    TOTAL,
    WEATHER,
    WEATHER_ASKED,
    At,
    cases,
)
from .forms import JOHN, Person, WeatherOf
from .openai_chat import ask, client

STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
MAIL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "send_email",
        "description": "Send an email.",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "subject": {"type": "string"}},
            "required": ["to"],
        },
    },
}
OBJECT = {"name": "John Smith", "age": 34}
RESULT = [
    *ASK_WEATHER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]


def asked_weather(at: At, **more: Any) -> Any:
    """Ask for the weather of a city, with the tool for it."""
    return ask(at, **{"messages": ASK_WEATHER, "tools": [WEATHER], **more})


def called(answer: Any) -> Any:
    """Return the one call of an answer, which looks up the city's weather."""
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", choice.finish_reason
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": CITY}, call.function.arguments
    return call


def content(answer: Any) -> Any:
    """Return an answer's object."""
    return json.loads(answer.choices[0].message.content)


def a_free_call(at: At) -> None:
    called(asked_weather(at))


def one_tool_of_two(at: At) -> None:
    called(asked_weather(at, tools=[MAIL, WEATHER]))


def no_tool_that_fits(at: At) -> None:
    choice = ask(at, tools=[WEATHER, MAIL]).choices[0]
    assert (choice.message.tool_calls, choice.message.content) == (None, TOTAL)


def a_required_call(at: At) -> None:
    assert called(asked_weather(at, tool_choice="required")).id


def a_named_call(at: At) -> None:
    called(asked_weather(at, tools=[MAIL, WEATHER], tool_choice=NAMED))


def no_call(at: At) -> None:
    assert ask(at, tools=[WEATHER], tool_choice="none").choices[0].message.content == TOTAL


def a_streamed_call(at: At) -> None:
    chunks = asked_weather(at, stream=True)
    pieces = [call for each in chunks for call in each.choices[0].delta.tool_calls or ()]
    assert pieces[0].function.name == "get_weather"
    text = "".join(each.function.arguments or "" for each in pieces)
    assert json.loads(text) == {"city": CITY}


def one_call_alone(at: At) -> None:
    more = {"tool_choice": "required", "parallel_tool_calls": False}
    called(asked_weather(at, tools=[WEATHER, MAIL], **more))


def result_of_a_call(at: At) -> None:
    choice = asked_weather(at, messages=RESULT).choices[0]
    assert choice.finish_reason == "stop", choice.finish_reason
    assert "sunny" in choice.message.content


def a_strict_call_is_parsed(at: At) -> None:
    tool = openai.pydantic_function_tool(WeatherOf, name="get_weather")
    made = client(at).chat.completions
    answer = made.parse(model=at.model, messages=ASK_WEATHER, tools=[tool], temperature=0)
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments.city == CITY


def strict_tools(at: At) -> None:
    called(asked_weather(at, tools=[STRICT]))


def tools_beside_a_form(at: At) -> None:
    more = {"response_format": FORM, "extra_body": NO_THINKING}
    assert content(ask(at, messages=EXTRACT, tools=[WEATHER], **more)) == OBJECT


def a_required_call_beside_a_form(at: At) -> None:
    called(asked_weather(at, tool_choice="required", response_format=FORM))


def functions(at: At) -> None:
    ask(at, functions=[WEATHER["function"]], function_call={"name": "get_weather"})


def a_schema(at: At) -> None:
    assert content(ask(at, messages=EXTRACT, response_format=FORM)) == OBJECT


def a_streamed_schema(at: At) -> None:
    chunks = ask(at, messages=EXTRACT, response_format=FORM, stream=True)
    text = "".join(each.choices[0].delta.content or "" for each in chunks)
    assert json.loads(text) == OBJECT


def any_object(at: At) -> None:
    said = [{"role": "user", "content": f"{TEXT} Answer in JSON with the keys name and age."}]
    answer = ask(at, messages=said, response_format={"type": "json_object"}, max_tokens=400)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(content(answer), dict)


def a_parsed_form(at: At) -> None:
    made = client(at).chat.completions
    answer = made.parse(model=at.model, messages=EXTRACT, response_format=Person, temperature=0)
    assert answer.choices[0].message.parsed == JOHN


def a_parsed_stream(at: At) -> None:
    made, fields = client(at).chat.completions, {"messages": EXTRACT, "temperature": 0}
    with made.stream(model=at.model, response_format=Person, **fields) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == JOHN


def a_choice(at: At) -> None:
    answer = ask(at, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert answer.choices[0].message.content in ("yes", "no")


def an_expression(at: At) -> None:
    answer = ask(at, extra_body={"guided_regex": "[0-9]{3}"})
    assert re.fullmatch("[0-9]{3}", answer.choices[0].message.content)


def call_of_a_response(at: At) -> None:
    tool = {"type": "function", **WEATHER["function"]}
    made = client(at).responses
    answer = made.create(model=at.model, input=WEATHER_ASKED, tools=[tool], temperature=0)
    (call,) = [each for each in answer.output if each.type == "function_call"]
    assert json.loads(call.arguments) == {"city": CITY}


def parsed_response(at: At) -> None:
    made = client(at).responses
    answer = made.parse(model=at.model, input=TEXT, text_format=Person, temperature=0)
    assert answer.output_parsed == JOHN


def search_in_the_web(at: At) -> None:
    client(at).responses.create(model=at.model, input="Go.", tools=[{"type": "web_search"}])


TOOLS = cases(
    *(a_free_call, one_tool_of_two, no_tool_that_fits),
    *(a_required_call, a_named_call, no_call, a_streamed_call),
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
