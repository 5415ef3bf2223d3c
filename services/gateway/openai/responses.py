"""Bodies of ``POST /v1/responses``, read as chats, which may continue a stored response."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, Tag

from headway.errors import Code, HeadwayError
from services.gateway.api_call import ApiCall, ReplyStyle, ResponseHistory
from services.gateway.openai.requests import (
    HARMLESS,
    NEUTRAL,
    Extension,
    Priority,
    RequestId,
    Salt,
    parse_chat,
)
from services.gateway.openai.sessions import SessionBody, session_of
from services.gateway.openai.shapes import Fields, Neutral, Number, Text, Whole, read

_MOST_ENTRIES, _MOST_KEY_CHARS, _MOST_VALUE_CHARS = 16, 64, 512  # of metadata, as OpenAI's
_MOST_REPEATED = 64_000
"""Characters of JSON of a field that a response repeats: each of its events does, at once."""
_BYTES_OF_ITEM = 64  # of memory, besides its JSON
_PLAIN = (
    *("model", "stream", "temperature", "top_p", "parallel_tool_calls"),
    *("priority", "cache_salt", "request_id"),
)


def _check_metadata(entries: dict[str, Any]) -> dict[str, Any]:
    """Return them; ValueError, which names neither keys nor values, where they are too much."""
    if len(entries) > _MOST_ENTRIES or not all(
        len(name) <= _MOST_KEY_CHARS and isinstance(value, str) and len(value) <= _MOST_VALUE_CHARS
        for name, value in entries.items()
    ):
        limits = f"keys of {_MOST_KEY_CHARS} and strings of {_MOST_VALUE_CHARS} characters at most"
        raise ValueError(f"it should have at most {_MOST_ENTRIES} entries, with {limits}")
    return entries


class ResponseText(Fields):
    """The object ``text``: the form of the answer."""

    neutral: ClassVar[Neutral] = {"verbosity": NEUTRAL["verbosity"]}
    format: dict[str, Any] | None = None


class ResponseReasoning(Fields):
    """The object ``reasoning``."""

    harmless: ClassVar[frozenset[str]] = frozenset({"summary", "generate_summary"})
    effort: Text | None = None


class ResponseBody(SessionBody):
    """``POST /v1/responses``."""

    harmless: ClassVar[frozenset[str]] = (HARMLESS - {"metadata", "store"}) | {"include"}
    neutral: ClassVar[Neutral] = {
        "background": (False,),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
        "conversation": (),
        "prompt": (),
        "max_tool_calls": (),
    }
    model: Text
    input: (
        Text | Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True), Tag("~items")]
    )
    instructions: Text | None = None
    previous_response_id: Text | None = None
    store: bool = True
    stream: bool = False
    temperature: Number | None = None
    top_p: Number | None = None
    max_output_tokens: Whole | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: Text | Annotated[dict[str, Any], Tag("~choice")] | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    metadata: Annotated[dict[str, Any], AfterValidator(_check_metadata)] | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None
    request_id: RequestId | None = None
    headway: Extension | None = None


def parse_response(
    body: Mapping[str, Any], find: Callable[[str], ResponseHistory] | None = None
) -> tuple[ApiCall, ReplyStyle]:
    """Read a body of ``POST /v1/responses``; a refusal may name the chat's field.

    ``find`` returns a stored response by its id; None where nothing is stored.
    """
    fields = read(ResponseBody, body)
    said = fields.model_dump(exclude_none=True)
    chat: dict[str, Any] = {name: said[name] for name in _PLAIN if name in said}
    earlier, own = _earlier(fields, find), _items(fields)
    chat["messages"] = _messages(fields, map(json.loads, earlier.items), own)
    if fields.max_output_tokens is not None:
        chat["max_tokens"] = fields.max_output_tokens
    if fields.tools:
        chat["tools"] = [_tool(tool) for tool in fields.tools]
    choice = fields.tool_choice
    if choice is not None:
        chat["tool_choice"] = _nested(choice) if isinstance(choice, dict) else choice
    if fields.text is not None and fields.text.format is not None:
        chat["response_format"] = _form(fields.text.format)
    if fields.reasoning is not None and fields.reasoning.effort is not None:
        chat["reasoning_effort"] = fields.reasoning.effort
    if fields.headway is not None:
        chat["headway"] = fields.headway.model_dump(by_alias=True, exclude_unset=True)
    call, style = parse_chat(chat)
    style = replace(style, responses=True, echoed=_echoed(fields))
    if find is not None and fields.store:
        style = replace(style, history=continued(earlier, own))
    return replace(call, session=session_of(fields, earlier.session_id)), style


def _earlier(
    fields: ResponseBody, find: Callable[[str], ResponseHistory] | None
) -> ResponseHistory:
    """Return the conversation that a request continues, which may be empty."""
    response_id = fields.previous_response_id
    if response_id is None:
        return ResponseHistory()
    if find is None:
        message = "this gateway stores no response: send the whole conversation as input"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="previous_response_id")
    return find(response_id)


def continued(history: ResponseHistory, items: Sequence[Mapping[str, Any]]) -> ResponseHistory:
    """Return a conversation with further items at its end."""
    more = [json.dumps(item, separators=(",", ":")).encode() for item in items]
    num_bytes = history.num_bytes + sum(len(item) + _BYTES_OF_ITEM for item in more)
    return history._replace(items=(*history.items, *more), num_bytes=num_bytes)


def _echoed(fields: ResponseBody) -> dict[str, Any]:
    """Return the fields of the request that its response repeats, as OpenAI's does.

    A field that is too long is repeated as if the request had not had it.
    """
    text = fields.text.model_dump(exclude_none=True) if fields.text is not None else {}
    reasoning = fields.reasoning
    return {
        "instructions": _if_short(fields.instructions, None),
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "temperature": fields.temperature,
        "text": {"format": {"type": "text"}, **_if_short(text, {})},
        "tool_choice": _if_short(fields.tool_choice or "auto", "auto"),
        "tools": _if_short(fields.tools or [], []),
        "top_p": fields.top_p,
    }


def _if_short(value: Any, otherwise: Any) -> Any:
    return value if len(json.dumps(value)) <= _MOST_REPEATED else otherwise


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat's form of a tool or a choice, whose function is an object of its own."""
    function = {name: value for name, value in flat.items() if name != "type"}
    return {"type": flat.get("type"), "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return _nested({name: value for name, value in tool.items() if name != "defer_loading"})


def _form(form: Mapping[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        return dict(form)
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _items(fields: ResponseBody) -> list[dict[str, Any]]:
    if isinstance(fields.input, str):
        return [{"role": "user", "content": fields.input}]
    return fields.input


def _messages(
    fields: ResponseBody, earlier: Iterable[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the chat; an earlier response's instructions are not in it, as in OpenAI's."""
    messages: list[dict[str, Any]] = []
    if fields.instructions:
        messages.append({"role": "system", "content": fields.instructions})
    for item in earlier:
        _add(messages, item, "previous_response_id")
    for place, item in enumerate(own):
        _add(messages, item, f"input[{place}]")
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], param: str) -> None:
    """Add an item to the chat; calls and reasoning belong to one message of the assistant."""
    match item.get("type", "message"):
        case "message":
            _add_message(messages, item)
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _content(item.get("output"))
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
            )
        case "reasoning":
            text = _reasoning(item.get("content"))
            messages.append({"role": "assistant", "content": "", "reasoning": text})
        case kind:
            message = f"{param}.type is {kind!r}; it must be a message, a call or its output"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param=f"{param}.type")


def _reasoning(parts: Any) -> str:
    listed = parts if isinstance(parts, list) else ()
    return "".join(str(part.get("text", "")) for part in listed if isinstance(part, dict))


def _add_message(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    content = _content(item.get("content"))
    last = messages[-1] if messages else {}
    if item.get("role") == "assistant" and "reasoning" in last and not last["content"]:
        last["content"] = content
    else:
        messages.append({"role": item.get("role"), "content": content})


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message at the end, a new one where there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(content: Any) -> Any:
    """Return parts of text as a chat has them; anything else is left to its reader."""
    if not isinstance(content, list):
        return content
    texts = ("input_text", "output_text", "text")
    return [
        {"type": "text", "text": part.get("text")}
        if isinstance(part, dict) and part.get("type") in texts
        else part
        for part in content
    ]
