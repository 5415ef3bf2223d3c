"""Tools through a real gateway and the official client: the emulated worker writes the calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.gateway.openai import replies
from services.gateway.openai.chat_template import ChatTemplate
from services.gateway.tokenizer import TextCodec
from tests.fakes.gateway_harness import Cluster
from tests.fakes.tiny_model import END, byte_tokenizer

TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
CALLS = (
    "<think>hm</think>Let me see."
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
)
CITIES = ["Zürich", "Bern"]


async def ask(running: Cluster, **more: Any) -> Any:
    """The template describes the tools before it: the echo has them, too."""
    return await running.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": CALLS}], tools=TOOLS, **more
    )


async def test_calls_come_apart_from_reasoning_and_text(running: Cluster) -> None:
    (choice,) = (await ask(running)).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content.endswith("Let me see.")
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["weather"] * 2
    assert [json.loads(call.function.arguments)["city"] for call in calls] == CITIES
    assert len({call.id for call in calls}) == 2


async def test_a_stream_has_the_same_calls_in_pieces(running: Cluster) -> None:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    ids, ends, num_pieces = set(), [], 0
    async for chunk in await ask(running, stream=True):
        for choice in chunk.choices:
            ends += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or ():
                num_pieces += 1
                ids |= {call.id} if call.id else set()
                names[call.index] = names.get(call.index, "") + (call.function.name or "")
                text = arguments.get(call.index, "") + (call.function.arguments or "")
                arguments[call.index] = text
    assert names == {0: "weather", 1: "weather"}
    assert [json.loads(arguments[n])["city"] for n in range(2)] == CITIES
    assert (ends, len(ids)) == (["tool_calls"], 2)
    assert num_pieces > 10, "arguments come as they are written"


async def test_one_call_at_a_time_if_the_client_says_so(running: Cluster) -> None:
    (choice,) = (await ask(running, parallel_tool_calls=False)).choices
    assert len(choice.message.tool_calls) == 1


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize("stream", [True, False])
async def test_half_a_surrogate_pair_in_a_call_ends_no_answer(
    running: Cluster, path: str, stream: bool
) -> None:
    made = '<tool_call>{"name": "weath\\ud800er", "arguments": "\\ud800"}</tool_call>'
    tool: dict[str, Any] = {"name": "weather", "input_schema": {}}
    if path != "messages":
        tool = TOOLS[0] if path == "chat/completions" else {"type": "function", "name": "weather"}
    said: Any = [{"role": "user", "content": made}]
    body = {"model": "tiny", "stream": stream, "tools": [tool]}
    body["input" if path == "responses" else "messages"] = said
    body |= {"max_tokens": 4000} if path == "messages" else {}
    async with running.http() as client:
        answer = await client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert "weath?er" in answer.text
    assert '"error":{' not in answer.text


async def test_an_answer_whose_last_part_cannot_be_written_ends_with_an_error(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "dumps", lambda _: 1 // 0)
    async with running.http() as client:
        for path, body in (
            ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("responses", {"input": "a"}),
        ):
            answer = await client.post(f"/v1/{path}", json={"model": "tiny", **body})
            assert answer.status_code == 500, answer.text
            assert "it is logged" in answer.text


async def test_without_a_choice_of_tools_calls_are_text(running: Cluster) -> None:
    (choice,) = (await ask(running, tool_choice="none")).choices
    assert choice.message.tool_calls is None
    assert "<tool_call>" in choice.message.content
    assert choice.finish_reason == "stop"


def test_a_template_that_knows_tools_gets_them() -> None:
    template = ChatTemplate("{{ tools | tojson }}|{{ messages | tojson }}", {})
    said = [{"role": "tool", "content": "5"}]
    assert template.render(said, {}, TOOLS) == f"{json.dumps(TOOLS)}|{json.dumps(said)}"
    assert template.render(said, {}).startswith("null|")


def test_a_template_that_knows_none_gets_calls_and_results_as_text() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}", {})
    made = {"function": {"name": "f", "arguments": {"a": 1}}}
    said: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "content": "5"},
    ]
    text = template.render(said, {}, TOOLS)
    assert text.startswith("[system:Be kind.\n\nYou may call")
    assert json.dumps(TOOLS[0]) in text
    assert '[assistant:<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>]' in text
    assert text.endswith("[user:<tool_response>\n5\n</tool_response>]")
    assert template.render([{"role": "user", "content": "x"}], {}) == "[user:x]"


def test_special_tokens_of_a_format_are_shown() -> None:
    codec = TextCodec(byte_tokenizer())
    plain, shown = codec.detokeniser(), codec.detokeniser(["<|end|>"])
    ids = (97, 0xC3, END, 98)
    assert "".join([plain.push(i) for i in ids]) + plain.flush() == "a\ufffdb"
    assert "".join([shown.push(i) for i in ids]) + shown.flush() == "a\ufffd<|end|>b"
