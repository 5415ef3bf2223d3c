"""OpenAI's request bodies: what is read, what is refused, and how it is named."""

from __future__ import annotations

import json
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.errors import Code, HeadwayError, invalid
from services.gateway.api_call import (
    ApiCall,
    ChatEnd,
    ChatInput,
    ToolUse,
    complete_sampling,
    with_choice,
)
from services.gateway.grammars import NO_COST, GrammarChecker, of_regex
from services.gateway.openai.chat_template import ChatTemplate
from services.gateway.openai.json import error_body
from services.gateway.openai.requests import (
    CHAT,
    HARMLESS,
    MAX_LOGPROBS_OF_CALL,
    parse_chat,
    parse_completion,
)
from services.gateway.openai.shapes import parse_json_object
from services.gateway.tool_calls.forced import MOST_CALLS
from services.runtime.grammars import compile_grammar, load_tokenizer

MINI = Path(__file__).parents[3] / "models" / "headway-mini"
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


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, "guided_json"),
        ({"guided_json": {}}, "guided_json"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"regex": "a+"}, "regex"),
        ({"guided_choice": ["a", "b"]}, "guided_choice"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
        ({"ebnf": 'root ::= "a"'}, "ebnf"),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
    ],
)
def test_a_form_of_the_answer_is_read_from_any_of_its_fields(
    more: dict[str, Any], param: str
) -> None:
    checker = GrammarChecker(MINI, 0)
    for call in (chat(**more), completion("x", **more)):
        assert call.grammar is not None
        assert call.grammar.param == param
        assert checker.check(call.grammar)


@pytest.mark.parametrize(
    ("more", "param", "why"),
    [
        ({"guided_json": {"type": "wrong"}}, "guided_json", "Invalid type: wrong"),
        ({"guided_json": "{"}, "guided_json", "EOF"),
        ({"guided_json": ""}, "guided_json", "EOF"),
        ({"guided_json": {"not": {}}}, "guided_json", "Unimplemented"),
        ({"guided_json": {"$ref": "http://a/b"}}, "guided_json", "not present"),
        ({"guided_regex": "("}, "guided_regex", "unclosed group"),
        ({"guided_grammar": 'root ::= ("a"'}, "guided_grammar", "Expected"),
        ({"guided_grammar": "start: x"}, "guided_grammar", "unknown name"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "'x' not found"),
        ({"ebnf": 'x ::= "a"'}, "ebnf", "No 'root' rule"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_json": {"enum": ["x" * 200_000]}}, "guided_json", "may have"),
        ({"guided_regex": "a", "ebnf": 'root ::= "b"'}, "ebnf", "one form"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ],
)
def test_a_form_that_cannot_be_followed_is_refused_by_name(
    more: dict[str, Any], param: str, why: str
) -> None:
    with pytest.raises(HeadwayError, match=why) as caught:
        GrammarChecker(MINI, 0).check(chat(**more).grammar)  # type: ignore[arg-type]  # some is asked for
    assert (caught.value.code, caught.value.param) == (Code.INVALID_ARGUMENT, param)


def test_an_effort_and_a_budget_bound_the_reasoning() -> None:
    assert chat().thinking_budget is None
    assert chat(thinking_token_budget=0).thinking_budget == 0
    assert refusal_of_chat(thinking_token_budget=-1).param == "thinking_token_budget"
    assert refusal_of_chat(reasoning_effort="much").param == "reasoning_effort"
    low = chat(reasoning_effort="low")
    assert isinstance(low.inputs[0], ChatInput)
    assert low.inputs[0].template_options == {"reasoning_effort": "low"}
    none = chat(reasoning_effort="none").inputs[0]
    assert isinstance(none, ChatInput)
    assert none.template_options["enable_thinking"] is False


def test_a_salt_belongs_to_the_request() -> None:
    assert chat(cache_salt="s").request_fields == {"cache_salt": "s"}
    assert refusal_of_chat(cache_salt="").param == "cache_salt"


TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
OTHER = {"type": "function", "function": {"name": "g"}}


def test_tools_are_described_to_the_template_and_read_from_the_answer() -> None:
    call = chat(tools=[TOOL, OTHER], parallel_tool_calls=False)
    (found,) = call.inputs
    assert isinstance(found, ChatInput)
    described = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    assert found.tools == [described, OTHER]
    assert call.tools is not None
    strict = {"name": "f", "description": None, "parameters": SCHEMA, "strict": True}
    plain = {"name": "g", "description": None, "parameters": None, "strict": False}
    assert call.tools == ToolUse(None, several=False, offered=(strict, plain))
    assert call.grammar is None
    assert chat(tools=[TOOL], tool_choice="none").tools is None
    assert chat(tools=[], tool_choice="auto").tools is None


def test_a_new_grammar_is_followed_for_a_while_and_its_last_masks_are_the_price() -> None:
    """A step of this clock is a millisecond at first, and ten from the tenth on."""
    instants = accumulate(0.001 if step < 10 else 0.01 for step in count())
    checker = GrammarChecker(MINI, 0, lambda: next(instants))
    grammar = of_regex("[ab]+", "regex")
    assert checker.cost(grammar.text) == NO_COST
    cost = checker.cost(checker.check(grammar))
    assert cost == pytest.approx((0.001, 0.01))
    assert cost.seconds(200) == pytest.approx(2.001)


def test_a_call_that_is_required_has_a_grammar() -> None:
    checker = GrammarChecker(MINI, 0)
    named = {"type": "function", "function": {"name": "g"}}
    for choice in ("required", named):
        call = chat(tools=[TOOL, OTHER], tool_choice=choice)
        assert call.grammar is not None
        assert checker.check(call.grammar)
        assert call.tools is not None
        assert call.tools.form is not None


@pytest.mark.parametrize(("several", "most"), [(None, 1), (False, 1), (True, MOST_CALLS)])
def test_an_answer_that_has_to_call_has_one_call_unless_more_are_asked_for(
    several: bool | None, most: int
) -> None:
    call = chat(tools=[OTHER], tool_choice="required", parallel_tool_calls=several)
    assert call.tools is not None
    assert call.tools.several is bool(several)
    assert call.grammar is not None
    tokenizer = load_tokenizer(MINI / "tokenizer.json", 0, ())
    one = '{"name": "g", "parameters": {}}'
    for number in (1, most, most + 1):
        matcher = compile_grammar(tokenizer, call.grammar.text)
        ids = tokenizer.tokenize_str(f"[{', '.join([one] * number)}]")
        assert (matcher.try_consume_tokens(ids) == len(ids)) is (number <= most)


def test_definitions_in_a_tools_parameters_stay_its_own() -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"enum": ["y"]}},
    }
    tools = [{"type": "function", "function": {"name": n, "parameters": parameters}} for n in "fg"]
    for choice in ("required", {"type": "function", "function": {"name": "g"}}):
        grammar = chat(tools=tools, tool_choice=choice).grammar
        assert grammar is not None
        GrammarChecker(MINI, 0).check(grammar)


def test_a_history_with_calls_and_reasoning_is_as_templates_want_it() -> None:
    made = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    call = chat(
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "call_1", "content": "5"},
            {"role": "assistant", "content": "x", "reasoning_content": "so", "tool_calls": []},
        ]
    )
    (found,) = call.inputs
    assert isinstance(found, ChatInput)
    settled = {**made, "function": {"name": "f", "arguments": {"a": 1}}}
    assert found.messages[1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [settled]},
        {"role": "tool", "tool_call_id": "call_1", "content": "5"},
        {"role": "assistant", "content": "x", "reasoning_content": "so"},
    ]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (dict.fromkeys(map(str, range(300)), 1), ""),
        ({"messages": [dict.fromkeys(map(str, range(300)), 1)]}, "messages[0]"),
        ({"logit_bias": {f"x{number}": [] for number in range(2000)}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": [{}] * 2000}]}, "messages[0].content[0].type"),
    ],
)
def test_a_body_that_is_wrong_in_many_places_is_refused_for_one(
    more: dict[str, Any], param: str
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    with pytest.raises(ValidationError) as wrong:
        CHAT.model_validate(body)
    assert wrong.value.error_count() <= 3
    with pytest.raises(HeadwayError) as refused:
        parse_chat(body)
    assert refused.value.param == param


def test_a_last_message_goes_on_from_its_last_place() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}", {})
    messages = [{"role": "user", "content": "so"}, {"role": "assistant", "content": " so"}]
    assert template.render(messages, {}, ending=ChatEnd.OPEN) == "[so][ so"
    cut = ChatTemplate("{{ messages[0].content }}{{ messages[1].content[:9] }}", {})
    long = [{"content": "a" * 600_000}, {"content": "a" * 150_000 + "b" + "a" * 150_000}]
    with pytest.raises(HeadwayError, match="cannot go on"):  # rfind would take minutes
        cut.render(long, {}, ending=ChatEnd.OPEN)


def test_log_probabilities_of_a_whole_answer_are_few() -> None:
    most = MAX_LOGPROBS_OF_CALL // (2 * 21)
    many: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 20}
    assert chat(**many, max_tokens=most).sampling["max_tokens"] == most
    assert chat(**many, max_tokens=10**5, stream=True).sampling["max_tokens"] == 10**5
    assert chat(**many).most_tokens == most
    assert (chat(n=2).most_tokens, chat(**many, stream=True).most_tokens) == (0, 0)
    with pytest.raises(HeadwayError, match="stream, or ask for fewer") as refused:
        chat(**many, max_completion_tokens=most + 1)
    assert refused.value.param == "max_tokens"
    with pytest.raises(HeadwayError, match="4 outputs that do not stream may have 3120"):
        completion(["a", "b"], n=2, logprobs=20, max_tokens=9999)


def test_bounds_of_the_draws_are_read() -> None:
    call = chat(logit_bias={"5": -100, "7": 1.5}, bad_words=["x"])
    assert call.bounds == {"biased_token_ids": (5, 7), "biases": (-100.0, 1.5)}
    assert call.bad_words == ("x",)
    assert completion("x", allowed_token_ids=[3, 4, 3]).bounds == {"allowed_token_ids": (3, 4)}
    assert chat(logit_bias={}).bounds == {}


@pytest.mark.parametrize(
    "more",
    [
        {"documents": [], "bad_words": [], "logits_processors": []},
        {"add_generation_prompt": True, "continue_final_message": False, "length_penalty": 1.0},
        {"include_reasoning": True, "separate_reasoning": True, "stream_reasoning": True},
        {"spaces_between_special_tokens": True, "skip_special_tokens": True, "no_stop_trim": False},
        {"priority": 0, "early_stopping": False, "use_beam_search": False, "min_new_tokens": 0},
        {"echo": False, "best_of": 1, "suffix": "", "prompt_logprobs": None, "verbosity": "low"},
        {"kv_transfer_params": {}, "verbosity": "high"},
    ],
)
def test_known_fields_that_ask_for_nothing_are_taken(more: dict[str, Any]) -> None:
    assert chat(**more).sampling == {}


def test_special_tokens_are_added_as_vllm_does_by_default() -> None:
    assert chat(add_special_tokens=False).model == "m"
    assert completion("x", add_special_tokens=True).model == "m"
    assert refusal_of_chat(add_special_tokens=True).param == "add_special_tokens"
    with pytest.raises(HeadwayError, match="add_special_tokens"):
        completion("x", add_special_tokens=False)


def test_a_chat_may_end_otherwise_than_with_an_answers_beginning() -> None:
    def ending(**more: Any) -> ChatEnd:
        (found,) = chat(**more).inputs
        assert isinstance(found, ChatInput)
        return found.ending

    assert ending() is ChatEnd.ANSWER
    assert ending(add_generation_prompt=False) is ChatEnd.MESSAGE
    assert ending(continue_final_message=True) is ChatEnd.OPEN


def test_usage_may_come_with_every_event() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    _, style = parse_chat(
        {"model": "m", "messages": HELLO, "stream": True, "stream_options": options}
    )
    assert style.continuous_usage


def test_a_null_field_counts_as_absent() -> None:
    assert chat(temperature=None, stop=None, tools=None, stream_options=None).sampling == {}


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_bookkeeping_of_openais_platform_is_accepted(name: str) -> None:
    assert chat(**{name: "x"}).model == "m"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("web_search_options", {}),
        ("prediction", {"type": "content"}),
        ("functions", [{}]),
        ("documents", [{"text": "x"}]),
        ("length_penalty", 0.5),
        ("echo", True),
        ("best_of", 2),
        ("best_of", True),
        ("suffix", "x"),
        ("verbosity", "loud"),
        ("kv_transfer_params", {"do_remote_decode": True}),
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
        ("messages[0].role", {"messages": [{"role": "robot", "content": "hi"}]}),
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
        ("tools[0].function", {"tools": [{"type": "function"}]}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("tools", {"tools": [OTHER, OTHER]}),
        ("tools", {"tools": [OTHER] * 129}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [OTHER], "tool_choice": "all"}),
        ("tool_choice", {"tools": [OTHER], "tool_choice": TOOL | {"function": {"name": "h"}}}),
        ("logit_bias.x.[key]", {"logit_bias": {"x": 1}}),
        ("logit_bias.5", {"logit_bias": {"5": 101}}),
        ("logit_bias.5", {"logit_bias": {"5": "1"}}),
        ("allowed_token_ids", {"allowed_token_ids": []}),
        ("allowed_token_ids", {"allowed_token_ids": [5], "guided_regex": "a"}),
        ("bad_words[0]", {"bad_words": [""]}),
        ("bad_words", {"bad_words": ["a"] * 257}),
        ("add_generation_prompt", {"continue_final_message": True, "add_generation_prompt": True}),
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
        (b"[]", "array"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": [{"b": 1e400}]}', "beyond 1.8e308"),
        (b'{"a": [' + b"1," * 5000 + b"[1e400]]}", "beyond 1.8e308"),
        (b'{"a": -' + b"9" * 250 + b"e99}", "beyond 1.8e308"),
        (b'{"a":' * 100_000, "deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        parse_json_object(body)


def test_the_greatest_numbers_and_what_looks_like_greater_ones_pass() -> None:
    body = b'{"a": 1.5e+308, "b": "1e400", "c": 1e-400, "d": ' + b"9" * 250 + b"}"
    assert parse_json_object(body) == json.loads(body)


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
    assert (completed({}).is_seeded, given_seed.is_seeded) == (False, True)
    assert [with_choice(given_seed, i).seed for i in (0, 1)] == [2**64 - 1, 0]


def test_no_client_says_whether_it_is_seeded() -> None:
    with pytest.raises(HeadwayError, match="is_seeded"):
        parse_completion({"model": "m", "prompt": "a", "is_seeded": True})


def test_a_refusal_can_be_sent_whatever_it_quotes() -> None:
    error = invalid("x\ud800", 1, "left out")
    assert error.message == str(error) == "x\\ud800 is 1; it must be left out"
    assert error.param == "x\\ud800"
    assert b"x\\\\ud800" in error_body(error).encode()
    assert refusal_of_chat(**{"x\ud800": 1}).message.isascii()
