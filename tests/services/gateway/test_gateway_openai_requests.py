"""OpenAI's request bodies: what is read, what is refused, and how it is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import Code, HeadwayError, invalid
from services.gateway.api_call import ApiCall, ChatInput, complete_sampling, with_choice
from services.gateway.openai.json import error_body
from services.gateway.openai.requests import (
    HARMLESS,
    parse_chat,
    parse_completion,
    parse_json_object,
)

HELLO = [{"role": "user", "content": "hi"}]


def chat(**more: Any) -> ApiCall:
    return parse_chat({"model": "m", "messages": HELLO, **more})[0]


def completion(prompt: Any, **more: Any) -> ApiCall:
    return parse_completion({"model": "m", "prompt": prompt, **more})[0]


def refusal_of_chat(**more: Any) -> HeadwayError:
    with pytest.raises(HeadwayError) as caught:
        chat(**more)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value


def test_a_chat_is_read_with_everything_it_says() -> None:
    call, style = parse_chat(
        {
            "model": "m",
            "messages": HELLO,
            "temperature": 0,
            "top_p": 0.5,
            "max_completion_tokens": 7,
            "seed": -1,
            "stop": "x",
            "n": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "top_logprobs": 3,
            "top_k": -1,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "min_tokens": 2,
            "stop_token_ids": [5],
            "chat_template_kwargs": {"enable_thinking": False},
            "return_token_ids": True,
        }
    )
    assert call.sampling == {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 7,
        "seed": 2**64 - 1,
        "num_logprobs": 3,
        "top_k": 0,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "min_tokens": 2,
        "stop_token_ids": (5,),
    }
    assert (call.stops, call.num_choices, call.split_reasoning) == (("x",), 2, True)
    assert call.inputs == (ChatInput(HELLO, {"enable_thinking": False}),)
    assert style.stream
    assert style.include_usage
    assert style.logprobs
    assert style.return_token_ids


def test_text_parts_are_joined_and_developers_speak_as_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = chat(messages=[{"role": "developer", "content": parts}])
    (found,) = call.inputs
    assert isinstance(found, ChatInput)
    assert found.messages == [{"role": "system", "content": "a\nb"}]


def test_a_null_field_counts_as_absent() -> None:
    assert chat(temperature=None, stop=None, tools=None, stream_options=None).sampling == {}


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_bookkeeping_of_openais_platform_is_accepted(name: str) -> None:
    assert chat(**{name: "x"}).model == "m"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("functions", [{}]),
        ("logit_bias", {"5": 1}),
        ("echo", True),
        ("best_of", 2),
        ("best_of", True),
        ("suffix", "x"),
        ("reasoning_effort", "low"),
        ("temprature", 1),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name: str, value: object) -> None:
    error = refusal_of_chat(**{name: value})
    assert error.param == name
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", []),
        ("tool_choice", "none"),
        ("response_format", {"type": "text"}),
        ("logit_bias", {}),
        ("best_of", 1),
    ],
)
def test_what_is_not_supported_passes_where_it_asks_for_nothing(name: str, value: object) -> None:
    assert chat(**{name: value}).model == "m"


@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("temperature", {"temperature": "hot"}),
        ("temperature", {"temperature": True}),
        ("temperature", {"temperature": 10**400}),
        ("top_p", {"top_p": float("inf")}),
        ("max_tokens", {"max_tokens": 1.5}),
        ("max_completion_tokens", {"max_tokens": 1, "max_completion_tokens": 2}),
        ("n", {"n": 0}),
        ("n", {"n": 129}),
        ("seed", {"seed": 2**64}),
        ("stop", {"stop": ["x"] * 17}),
        ("stop", {"stop": [""]}),
        ("stop", {"stop": 5}),
        ("stop_token_ids", {"stop_token_ids": [-1]}),
        ("stream", {"stream": "yes"}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stream_options.x", {"stream": True, "stream_options": {"x": 1}}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("messages", {"messages": []}),
        ("messages", {"messages": None}),
        ("messages", {"messages": "hi"}),
        ("messages[0]", {"messages": ["hi"]}),
        ("messages[0].role", {"messages": [{"content": "hi"}]}),
        ("messages[0].role", {"messages": [{"role": "tool", "content": "hi"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": "\ud800"}]}),
        (
            "messages[0].content[0].type",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        ),
        ("messages[0].x", {"messages": [{"role": "user", "content": "hi", "x": 1}]}),
        ("model", {"model": None}),
        ("model", {"model": 5}),
        ("chat_template_kwargs", {"chat_template_kwargs": []}),
    ],
)
def test_a_bad_value_is_refused_with_its_parameter(param: str, more: dict[str, Any]) -> None:
    assert refusal_of_chat(**more).param == param


def test_a_completions_prompt_is_text_or_token_ids_or_several_of_either() -> None:
    assert completion("a").inputs == ("a",)
    assert completion([1, 2]).inputs == ((1, 2),)
    assert completion(["a", "b"]).inputs == ("a", "b")
    assert completion([[1], [2, 3]]).inputs == ((1,), (2, 3))


@pytest.mark.parametrize("prompt", [None, [], [[]], [1, "a"], [True], {}, [["a"]], ["a"] * 129])
def test_any_other_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(HeadwayError, match="prompt"):
        completion(prompt)


def test_prompts_times_choices_are_bounded() -> None:
    with pytest.raises(HeadwayError, match="n is 65"):
        completion(["a", "b"], n=65)


def test_a_completion_asks_for_logprobs_by_number() -> None:
    assert completion("a", logprobs=2).sampling == {"num_logprobs": 2}
    with pytest.raises(HeadwayError, match="logprobs"):
        completion("a", logprobs=True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xff{}", "UTF-8"),
        (b"{", "JSON"),
        (b"[]", "list"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a":' * 100_000, "deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        parse_json_object(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first draw builds tables
@given(
    st.dictionaries(
        st.sampled_from(
            ("prompt", "messages", "stop", "n", "seed", "stream", "logprobs", "tools", "x")
        ),
        JSON,
    )
)
def test_whatever_a_body_holds_it_is_read_or_refused(body: dict[str, Any]) -> None:
    for parse in (parse_chat, parse_completion):
        try:
            parse({"model": "m", **body})
        except HeadwayError as error:
            json.dumps(error.message)


def completed(said: dict[str, Any], **defaults: float) -> Any:
    return complete_sampling(
        said, defaults, default_max_tokens=0, num_prompt_tokens=10, max_model_len=100, seed=3
    )


def test_the_clients_parameters_go_before_the_models_and_those_before_openais() -> None:
    found = completed({"top_p": 0.5}, top_p=0.9, temperature=0.6)
    assert (found.top_p, found.temperature, found.min_p) == (0.5, 0.6, 0.0)


def test_without_a_limit_an_output_may_fill_the_context() -> None:
    assert completed({}).max_tokens == 90


def test_the_seed_is_drawn_where_none_is_given_and_differs_by_choice() -> None:
    assert completed({}).seed == 3
    given_seed = completed({"seed": 2**64 - 1})
    assert [with_choice(given_seed, i).seed for i in (0, 1)] == [2**64 - 1, 0]


def test_a_refusal_can_be_sent_whatever_it_quotes() -> None:
    error = invalid("x\ud800", 1, "left out")
    assert error.message == str(error) == "x\\ud800 is 1; it must be left out"
    assert error.param == "x\\ud800"
    assert b"x\\\\ud800" in error_body(error).encode()
    assert refusal_of_chat(**{"x\ud800": 1}).message.isascii()
