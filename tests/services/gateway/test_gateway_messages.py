"""``/v1/messages`` through a real gateway and the official client, unchanged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anthropic
import pytest

from headway.errors import Code, HeadwayError
from services.gateway.anthropic.replies import MessagesReply
from services.gateway.anthropic.requests import parse_messages
from services.gateway.api_call import ChatEnd, ChatInput, ReplyStyle
from services.gateway.openai.json import CallIdentity
from services.gateway.output_text import Piece
from services.gateway.tokenizer import TextCodec
from services.gateway.tool_calls import CallPiece
from tests.fakes.gateway_harness import Cluster, cluster, write_keys
from tests.fakes.sent import Sent
from tests.fakes.tiny_model import byte_tokenizer

if TYPE_CHECKING:
    from services.gateway.outputs import Output

TOOLS: list[Any] = [
    {"name": "weather", "description": "It tells.", "input_schema": {"type": "object"}}
]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
BERN = '"Bern"'
HELLO: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(running: Cluster) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The official client; without its retries, so that errors are seen."""
    async with anthropic.AsyncAnthropic(
        api_key="none", base_url=running.url, max_retries=0
    ) as found:
        yield found


def said(text: str, **more: Any) -> dict[str, Any]:
    """The emulated worker answers with the prompt's text."""
    return {
        "model": "tiny",
        "max_tokens": 2000,
        "messages": [{"role": "user", "content": text}],
    } | (more)


def chat(**more: Any) -> ChatInput:
    """What the chat template gets of a body."""
    (found,) = parse_messages({"model": "m", "max_tokens": 5, "messages": HELLO, **more})[0].inputs
    assert isinstance(found, ChatInput)
    return found


async def test_an_answer_has_its_reasoning_as_a_block(client: anthropic.AsyncAnthropic) -> None:
    answer = await client.messages.create(**said("<think>hm</think>It is 15."))
    thinking, text = answer.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert (answer.role, answer.model, answer.stop_reason) == ("assistant", "tiny", "end_turn")
    assert text.type == "text"
    assert text.text == "It is 15."
    assert answer.id.startswith("msg_")
    assert answer._request_id
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens_details is not None
    assert 0 < answer.usage.output_tokens_details.thinking_tokens < answer.usage.output_tokens


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN"])
async def test_arguments_that_json_cannot_say_again_come_as_text(
    client: anthropic.AsyncAnthropic, number: str
) -> None:
    body = said(f"See. {CALL.replace(BERN, number)}", tools=TOOLS)
    call = (await client.messages.create(**body)).content[-1]
    assert call.type == "tool_use"
    assert call.input == {"INVALID_JSON": f'{{"city": {number}}}'}


async def test_a_call_is_a_block_and_its_result_may_follow(
    client: anthropic.AsyncAnthropic,
) -> None:
    body = said(f"See. {CALL}", tools=TOOLS, tool_choice={"type": "auto"})
    answer = await client.messages.create(**body)
    call = answer.content[-1]
    assert call.type == "tool_use"
    assert (call.name, call.input, answer.stop_reason) == ("weather", {"city": "Bern"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "5", "is_error": False}
    messages = [
        *body["messages"],
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    found = chat(messages=messages, tools=TOOLS).messages
    assert [each["role"] for each in found] == ["user", "assistant", "tool", "user"]
    assert found[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Bern"}
    assert found[2]["tool_call_id"] == call.id
    again = await client.messages.create(**{**body, "messages": messages})
    assert again.content


async def test_a_stream_has_the_whole_in_events(client: anthropic.AsyncAnthropic) -> None:
    kinds, arguments = [], ""
    async with client.messages.stream(**said(f"<think>hm</think>So. {CALL}", tools=TOOLS)) as told:
        async for event in told:
            kinds.append(event.type)
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                arguments += event.delta.partial_json
        last = await told.get_final_message()
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    num_blocks = len(last.content)
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == num_blocks
    assert {block.type for block in last.content} == {"thinking", "text", "tool_use"}
    assert json.loads(arguments) == {"city": "Bern"}
    call = last.content[-1]
    assert call.type == "tool_use"
    assert (call.input, last.stop_reason) == ({"city": "Bern"}, "tool_use")
    assert last.usage.output_tokens > 0


async def test_the_end_has_its_reason(client: anthropic.AsyncAnthropic) -> None:
    found = await client.messages.create(**said("abc.def", stop_sequences=["x", "."]))
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", ".")
    found = await client.messages.create(**said("abcdef", max_tokens=3))
    assert (found.stop_reason, found.usage.output_tokens) == ("max_tokens", 3)


async def test_the_context_may_end_before_the_clients_limit(tmp_path: Path, store_url: str) -> None:
    async with (
        cluster(tmp_path, store_url, max_model_len=40) as running,
        anthropic.AsyncAnthropic(api_key="x", base_url=running.url, max_retries=0) as client,
    ):
        found = await client.messages.create(**said("a" * 30, max_tokens=9000))
        assert found.stop_reason == "model_context_window_exceeded"
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**said("a" * 100))


async def test_tokens_are_counted(client: anthropic.AsyncAnthropic) -> None:
    body: Any = {"model": "tiny", "messages": HELLO, "system": "Be kind.", "tools": TOOLS}
    counted = await client.messages.count_tokens(**body)
    answer = await client.messages.create(**body, max_tokens=5)
    assert counted.input_tokens == answer.usage.input_tokens


async def test_errors_have_anthropics_shape(client: anthropic.AsyncAnthropic) -> None:
    for wrong, words in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": "other"}, "is not served here"),
        ({"extra_body": {"nothing": 1}}, "nothing is not a parameter"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "'tool_use'"),
    ):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(**{**said("hi"), **wrong})
        body: Any = caught.value.body
        missing = "model" in wrong
        kind = "not_found_error" if missing else "invalid_request_error"
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert words in body["error"]["message"]
        assert caught.value.status_code == (404 if missing else 400)
        assert caught.value.request_id


async def test_a_deadline_ends_a_stream_with_what_there_is(tmp_path: Path, store_url: str) -> None:
    async with (
        cluster(tmp_path, store_url, delay=0.05, request_timeout=1.0) as running,
        running.http() as client,
    ):
        found = await client.post("/v1/messages", json=said("a" * 400, stream=True))
    kinds = [line[7:] for line in found.text.splitlines() if line.startswith("event: ")]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert '"stop_reason":"max_tokens"' in found.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_is_an_event_of_a_stream_and_else_an_answer(stream: bool) -> None:
    exchange = Sent()
    identity = CallIdentity("chatcmpl-1", "m", 0, "", chat=True)
    style = ReplyStyle(chat=True, stream=stream, messages=True)
    codec = TextCodec(byte_tokenizer())
    reply = MessagesReply(exchange, identity, style, codec, lambda outputs, error: None)
    output = cast("Output", None)  # what it shows is in the pieces
    reply.show(output, Piece("", "See: ", (CallPiece(0, "f", ""), CallPiece(0, "", '{"a"'))), None)
    reply.show(output, Piece("", "So.", (CallPiece(0, "", ": 1}"),)), None)
    reply.fail(HeadwayError(Code.UNAVAILABLE, "gone"))
    *events, last = exchange.body.decode().removesuffix("\n\n").split("\n\n")
    error = json.loads(last.partition("data: ")[2] if stream else last)
    assert error == {"type": "error", "error": {"type": "overloaded_error", "message": "gone"}}
    assert last.startswith("event: error\n") is stream
    changes = [json.loads(event.partition("data: ")[2]) for event in events]
    kinds = [change["type"].removeprefix("content_block_") for change in changes]
    text, call = ["start", "delta", "stop"], ["start", "delta", "delta", "stop"]
    assert kinds == ["message_start", *text, *call, "start", "delta"] * stream


async def test_a_key_comes_in_anthropics_header(tmp_path: Path, store_url: str) -> None:
    keys = write_keys(tmp_path / "k")
    async with cluster(tmp_path, store_url, api_key_file=keys) as running:
        for given in ({"api_key": "hw-a"}, {"auth_token": "hw-a"}):
            options: Any = {"base_url": running.url, "max_retries": 0, **given}
            async with anthropic.AsyncAnthropic(**options) as client:
                assert (await client.messages.create(**said("hi"))).content
        options = {"base_url": running.url, "max_retries": 0}
        async with anthropic.AsyncAnthropic(api_key="wrong", **options) as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await client.messages.create(**said("hi"))
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"
        async with running.http() as other:  # OpenAI's routes take no such header
            found = await other.get("/v1/models", headers={"x-api-key": "hw-a"})
            assert found.status_code == 401
            for own, token in (("hw-a", "wrong"), ("wrong", "hw-a"), ("wrong", "wrong")):
                both = {"x-api-key": own, "authorization": f"Bearer {token}"}
                sent = await other.post("/v1/messages", json=said("hi"), headers=both)
                assert sent.status_code == (200 if "hw-a" in (own, token) else 401)
            one, another = ("x-api-key", "hw-a"), ("authorization", "Bearer hw-a")
            for twice, good in ((one, another), (another, one)):  # nobody can say which counts
                for headers, status in (([twice] * 2, 401), ([twice, twice, good], 200)):
                    sent = await other.post("/v1/messages", json=said("hi"), headers=headers)
                    assert sent.status_code == status


def test_everything_that_has_a_counterpart_is_read() -> None:
    marked = {"cache_control": {"type": "ephemeral"}}
    call, style = parse_messages(
        {
            "model": "m",
            "max_tokens": 7,
            "system": [{"type": "text", "text": "Be kind.", **marked}],
            "messages": HELLO,
            "stop_sequences": ["x"],
            "temperature": 0.5,
            "top_k": 3,
            "stream": True,
            "metadata": {"user_id": "u"},
            "tools": [{**TOOLS[0], **marked}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 2000},
            "output_config": {"effort": "max"},
            "headway": {"class": "batch"},
            "session_id": "s",
        }
    )
    assert (style.messages, style.stream, style.max_tokens) == (True, True, 7)
    assert call.sampling == {"temperature": 0.5, "top_k": 3, "max_tokens": 7}
    assert (call.stops, call.thinking_budget, call.reasoning_effort) == (("x",), 2000, "xhigh")
    assert (call.service_class, call.session.named, call.fills_context) == ("batch", "s", True)
    assert call.tools is not None
    assert (call.tools.several, call.grammar is not None) == (False, True)
    (found,) = call.inputs
    assert isinstance(found, ChatInput)
    assert found.messages[0] == {"role": "system", "content": "Be kind."}
    assert found.template_options["enable_thinking"] is True
    assert found.tools[0]["function"]["parameters"] == {"type": "object"}


def test_a_form_and_a_named_tool_bound_the_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"format": {"type": "json_schema", "schema": schema}}
    for more in (
        {"output_config": form},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}},
    ):
        call, _ = parse_messages({"model": "m", "max_tokens": 5, "messages": HELLO, **more})
        assert call.grammar is not None
    with pytest.raises(HeadwayError, match="tool_choice"):
        parse_messages(said("hi", tools=TOOLS, tool_choice={"type": "tool", "name": "other"}))


def test_an_answer_that_was_begun_goes_on() -> None:
    begun = {"role": "assistant", "content": [{"type": "text", "text": "Well,"}]}
    assert chat(messages=[*HELLO, begun]).ending is ChatEnd.OPEN
    assert chat().ending is ChatEnd.ANSWER
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "x+/="}
    answer = {"role": "assistant", "content": [hidden, thought, {"type": "text", "text": "Yes."}]}
    found = chat(messages=[*HELLO, answer, *HELLO])
    assert found.messages[1]["reasoning_content"] == "hm"
    assert found.messages[1]["content"] == "Yes."
    assert found.ending is ChatEnd.ANSWER
