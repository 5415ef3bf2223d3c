"""``/v1/responses`` through a real gateway and the official client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import openai
import pytest

from headway.errors import HeadwayError
from services.gateway.api_call import ChatInput, ReplyStyle
from services.gateway.openai.json import CallIdentity
from services.gateway.openai.response_replies import ResponseReply
from services.gateway.openai.responses import parse_response
from services.gateway.output_text import Piece
from services.gateway.tokenizer import TextCodec
from services.gateway.tool_calls import CallPiece
from tests.fakes.gateway_harness import Cluster
from tests.fakes.sent import Sent
from tests.fakes.tiny_model import byte_tokenizer

if TYPE_CHECKING:
    from services.gateway.outputs import Output

CODEC = TextCodec(byte_tokenizer())


TOOLS: list[Any] = [{"type": "function", "name": "weather", "parameters": {}, "strict": False}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'


async def test_an_answer_has_its_reasoning_as_an_item(running: Cluster) -> None:
    answer = await running.openai().responses.create(
        model="tiny", input="<think>hm</think>It is 15.", store=False
    )
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output_text == "It is 15."
    assert (answer.status, answer.object) == ("completed", "response")
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens > 0


async def test_calls_are_items_and_their_results_may_follow(running: Cluster) -> None:
    client = running.openai()
    asked: Any = {"role": "user", "content": CALL}
    answer = await client.responses.create(model="tiny", input=[asked], tools=TOOLS)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})
    items: Any = [asked, call.model_dump()]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "5"})
    body = {"model": "tiny", "input": items, "tools": TOOLS}
    (found,) = parse_response(body)[0].inputs
    assert isinstance(found, ChatInput)
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool"]
    assert (await client.responses.create(**body)).status == "completed"


async def test_a_stream_has_the_whole_in_events(running: Cluster) -> None:
    text, arguments, kinds, numbers = "", "", [], []
    stream: Any = await running.openai().responses.create(
        model="tiny", input=f"<think>hm</think>So. {CALL}", tools=TOOLS, stream=True
    )
    async for event in stream:
        kinds.append(event.type.removeprefix("response."))
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type == "response.function_call_arguments.delta":
            arguments += event.delta
        elif event.type == "response.completed":
            last = event.response
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == len(last.output)
    assert numbers == list(range(len(numbers)))
    assert json.loads(arguments) == {"city": "Bern"}
    assert text == "".join(i.content[0].text for i in last.output if i.type == "message")


async def test_a_form_and_an_effort_are_read(running: Cluster) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    call, style = parse_response(
        {
            "model": "m",
            "instructions": "Be kind.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "text": {"format": form, "verbosity": "low"},
            "reasoning": {"effort": "low"},
            "max_output_tokens": 7,
        }
    )
    assert style.responses
    assert call.grammar is not None
    assert (call.reasoning_effort, call.sampling["max_tokens"]) == ("low", 7)
    (found,) = call.inputs
    assert isinstance(found, ChatInput)
    assert [m["content"] for m in found.messages] == ["Be kind.", "hi"]


def test_fields_of_ours_are_read_as_in_a_chat() -> None:
    own = {"headway": {"class": "batch", "pacing": False}, "priority": 3, "cache_salt": "s"}
    call, _ = parse_response({"model": "m", "input": "hi", **own})
    assert (call.service_class, call.paced, call.priority) == ("batch", False, 3)
    assert call.request_fields == {"cache_salt": "s"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input": [None]}, "input[0] is None; it must be a valid object"),
        ({"input": 5}, "input is 5; it must be a valid string or be a valid list"),
        ({"tool_choice": 5}, "tool_choice is 5; it must be a valid string or be a valid object"),
    ],
)
def test_a_refusal_names_a_field_of_the_body(wrong: Any, message: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        parse_response({"model": "tiny", "input": "hi", **wrong})
    assert refused.value.message == message
    assert refused.value.param == message.partition(" ")[0]


def test_a_calls_last_arguments_may_come_with_text() -> None:
    exchange = Sent()
    identity = CallIdentity("chatcmpl-1", "m", 0, "", chat=True)
    style = ReplyStyle(chat=True, responses=True)
    reply = ResponseReply(exchange, identity, style, CODEC, lambda outputs, error: None)
    output = cast("Output", None)  # what it shows is in the pieces
    reply.show(output, Piece("", "See: ", (CallPiece(0, "f", ""), CallPiece(0, "", '{"a"'))), None)
    last = (CallPiece(0, "", ": 1}"), CallPiece(1, "g", "{}"))
    reply.show(output, Piece("", "So.", last), "stop")
    items = json.loads(exchange.body)["output"]
    assert [item["type"] for item in items] == ["message", "function_call"] * 2
    assert [item.get("arguments") for item in items] == [None, '{"a": 1}', None, "{}"]


@pytest.mark.parametrize(
    "more", [{"conversation": "x"}, {"background": True}, {"tools": [{"type": "web"}]}]
)
async def test_what_needs_a_memory_or_more_tools_is_refused(
    running: Cluster, more: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError):
        await running.openai().responses.create(model="tiny", input="hi", **more)


@pytest.mark.parametrize(
    "metadata",
    [
        "x",
        {"a": 1},
        {"a": {"b": "c"}},
        {"k" * 65: ""},
        {"a": "v" * 513},
        dict.fromkeys("0123456789abcdefg", ""),
    ],
)
def test_metadata_is_short_and_of_text(metadata: Any) -> None:
    with pytest.raises(HeadwayError, match="metadata") as refused:
        parse_response({"model": "m", "input": "hi", "metadata": metadata})
    assert refused.value.param == "metadata"
    assert len(refused.value.message) < 300


def test_a_field_that_is_too_long_is_not_repeated() -> None:
    tools = [{"type": "function", "name": "f", "description": "x" * 70_000}]
    body = {"model": "m", "input": "hi", "instructions": "x" * 70_000, "tools": tools}
    echoed = parse_response(body)[1].echoed
    assert (echoed["instructions"], echoed["tools"], echoed["tool_choice"]) == (None, [], "auto")


async def test_a_stream_repeats_long_fields_at_its_begin_and_its_end_alone(
    running: Cluster,
) -> None:
    found = {}
    stream: Any = await running.openai().responses.create(
        model="tiny", input="hi", instructions="Be short.", tools=TOOLS, stream=True
    )
    async for event in stream:
        if hasattr(event, "response"):
            found[event.type] = event.response
    created, going, completed = found.values()
    assert created.instructions == completed.instructions == "Be short."
    assert len(created.tools) == len(completed.tools) == 1
    assert (going.instructions, going.tools, going.id) == (None, [], created.id)


async def test_a_response_repeats_the_fields_of_its_request(running: Cluster) -> None:
    answer = await running.openai().responses.create(
        model="tiny",
        input="It is 15.",
        instructions="Be short.",
        tools=TOOLS,
        tool_choice="none",
        max_output_tokens=40,
        temperature=0.5,
        metadata={"run": "7"},
    )
    assert (answer.instructions, answer.metadata) == ("Be short.", {"run": "7"})
    assert (answer.max_output_tokens, answer.temperature) == (40, 0.5)
    assert answer.tool_choice == "none"
    assert [tool.name for tool in answer.tools if tool.type == "function"] == ["weather"]
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "text"
