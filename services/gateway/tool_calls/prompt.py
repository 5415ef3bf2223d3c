"""Tools in the prompt of a model whose chat template knows none: Hermes' words, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.gateway.tool_calls.hermes import BEGIN, END

Message = Mapping[str, Any]

_WORDS = """\
You may call one or more functions to assist with the user query.
The functions are described within <tools></tools>:
<tools>
{tools}
</tools>
For each call, return a JSON object with its name and arguments within {begin}{end}:
{begin}
{{"name": <function-name>, "arguments": <args-json-object>}}
{end}"""


def with_tools(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """Return the messages with the tools described in the system's, and calls as text."""
    as_texts: list[Message] = [_as_text(message) for message in messages]
    if not tools:
        return as_texts
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    words = _WORDS.format(tools=described, begin=BEGIN, end=END)
    if as_texts and as_texts[0].get("role") == "system":
        first = {**as_texts[0], "content": f"{as_texts[0]['content']}\n\n{words}"}
        return [first, *as_texts[1:]]
    return [{"role": "system", "content": words}, *as_texts]


def _as_text(message: Message) -> Message:
    """Return a message that any template takes: calls and results as text."""
    if message.get("role") == "tool":
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = "\n".join(f"{BEGIN}\n{json.dumps(call['function'])}\n{END}" for call in calls)
    content = f"{message['content']}\n{written}" if message["content"] else written
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": content}
