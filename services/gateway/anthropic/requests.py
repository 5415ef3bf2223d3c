"""Bodies of ``POST /v1/messages`` and ``/v1/messages/count_tokens``, read as chats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from services.gateway.api_call import ApiCall, Input, ReplyStyle
from services.gateway.openai.messages import MAX_TOOLS
from services.gateway.openai.requests import Extension, Priority, Salt, parse_chat
from services.gateway.openai.sessions import SessionBody, session_of
from services.gateway.openai.shapes import Fields, Neutral, Number, StopStrings, Text, Whole, read

Json = dict[str, Any]

_MARKED = frozenset({"cache_control"})  # beginnings of prompts are cached without being marked
_PLAIN = (*("model", "stream", "temperature", "top_p", "top_k"), *("priority", "cache_salt"))
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class TextBlock(Fields):
    """Text of a message, of the system or of a tool's result."""

    harmless: ClassVar[frozenset[str]] = _MARKED
    neutral: ClassVar[Neutral] = {"citations": ([],)}
    type: Literal["text"]
    text: Text


class ThinkingBlock(Fields):
    """Reasoning of an earlier answer; nobody checks its signature."""

    harmless: ClassVar[frozenset[str]] = frozenset({"signature"})
    type: Literal["thinking"]
    thinking: Text


class RedactedThinkingBlock(Fields):
    """Reasoning that another server has encrypted: nobody here can read it, so it is left out."""

    harmless: ClassVar[frozenset[str]] = frozenset({"data"})
    type: Literal["redacted_thinking"]


class ToolUseBlock(Fields):
    """A call of an earlier answer."""

    harmless: ClassVar[frozenset[str]] = _MARKED | {"caller"}
    neutral: ClassVar[Neutral] = {"toolset_name": ()}
    type: Literal["tool_use"]
    id: Text
    name: Text
    input: Json


TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True), Tag("~blocks")]


class ToolResultBlock(Fields):
    """The result of a call; whether it is an error is for its text to say."""

    harmless: ClassVar[frozenset[str]] = _MARKED | {"is_error"}
    neutral: ClassVar[Neutral] = {"toolset_name": ()}
    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | TextBlocks = ""


def _kind(block: Any) -> str:
    return f"~{block.get('type')}" if isinstance(block, Mapping) else "~"


def _who(turn: Any) -> str:
    return "~answer" if isinstance(turn, Mapping) and turn.get("role") == "assistant" else "~said"


SaidBlock = Annotated[
    Annotated[TextBlock, Tag("~text")] | Annotated[ToolResultBlock, Tag("~tool_result")],
    Discriminator(_kind),
]
AnswerBlock = Annotated[
    Annotated[TextBlock, Tag("~text")]
    | Annotated[ThinkingBlock, Tag("~thinking")]
    | Annotated[RedactedThinkingBlock, Tag("~redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("~tool_use")],
    Discriminator(_kind),
]


class SaidTurn(Fields):
    """A message of the user or the system: a text, or blocks."""

    role: Literal["user", "system"]
    content: Text | Annotated[list[SaidBlock], Field(fail_fast=True), Tag("~blocks")]


class AnswerTurn(Fields):
    """An earlier answer, or the beginning of this one."""

    role: Literal["assistant"]
    content: Text | Annotated[list[AnswerBlock], Field(fail_fast=True), Tag("~blocks")]


Turn = Annotated[
    Annotated[SaidTurn, Tag("~said")] | Annotated[AnswerTurn, Tag("~answer")], Discriminator(_who)
]


class CustomTool(Fields):
    """A tool that the client runs; Anthropic's own are not here."""

    harmless: ClassVar[frozenset[str]] = _MARKED | {
        *("allowed_callers", "defer_loading", "eager_input_streaming", "input_examples")
    }
    type: Literal["custom"] = "custom"
    name: Text
    description: Text | None = None
    input_schema: Json
    strict: bool = False


class ToolChoice(Fields):
    """The object ``tool_choice``."""

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Fields):
    """The object ``thinking``; reasoning is always shown."""

    harmless: ClassVar[frozenset[str]] = frozenset({"display"})
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None


class JsonForm(Fields):
    """The form of an answer."""

    type: Literal["json_schema"]
    form: Json = Field(alias="schema")


class OutputConfig(Fields):
    """The object ``output_config``."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonForm | None = None


class InputTokensBody(SessionBody):
    """``POST /v1/messages/count_tokens``: what a prompt is made of."""

    harmless: ClassVar[frozenset[str]] = _MARKED | {
        *("metadata", "service_tier", "inference_geo", "context_management", "diagnostics")
    }
    neutral: ClassVar[Neutral] = {
        "container": (),
        "mcp_servers": ([],),
        "speed": ("standard",),
        "user_profile_id": (),
    }
    model: Text
    messages: Annotated[list[Turn], Field(min_length=1, fail_fast=True)]
    system: Text | TextBlocks | None = None
    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesBody(InputTokensBody):
    """``POST /v1/messages``."""

    max_tokens: Annotated[Whole, Field(ge=1, lt=2**31)]
    stop_sequences: StopStrings = Field([])
    stream: bool = False
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Whole | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None
    headway: Extension | None = None


def parse_messages(body: Mapping[str, Any]) -> tuple[ApiCall, ReplyStyle]:
    """Read a body of ``POST /v1/messages``; a refusal may name the chat's field."""
    fields = read(MessagesBody, body)
    said = fields.model_dump(include={*_PLAIN}, exclude_none=True)
    chat = {**_chat(fields), **said, "max_tokens": fields.max_tokens, "stop": fields.stop_sequences}
    if fields.headway is not None:
        chat["headway"] = fields.headway.model_dump(by_alias=True, exclude_unset=True)
    call, style = parse_chat(chat)
    call = replace(call, session=session_of(fields), fills_context=True)
    return call, replace(style, messages=True, max_tokens=fields.max_tokens)


def parse_counted(body: Mapping[str, Any]) -> tuple[str, Input]:
    """Read a body of ``POST /v1/messages/count_tokens``: a model, and a chat for it."""
    call, _ = parse_chat(_chat(read(InputTokensBody, body)))
    return call.model, call.inputs[0]


def _chat(fields: InputTokensBody) -> Json:
    """Return what makes the prompt, and the answer's form, as a body of a chat has it."""
    chat: Json = {"model": fields.model, "messages": list(_messages(fields))}
    last = fields.messages[-1]
    if last.role == "assistant" and "tool_calls" not in chat["messages"][-1]:  # it goes on
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    if fields.tools:
        chat["tools"] = [_tool(tool) for tool in fields.tools]
    choice, thinking, config = fields.tool_choice, fields.thinking, fields.output_config
    if choice is not None:
        named = {"type": "function", "function": {"name": choice.name}}
        chat["tool_choice"] = _CHOICES.get(choice.type, named)
        if choice.disable_parallel_tool_use is not None:
            chat["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if thinking is not None:
        chat["chat_template_kwargs"] = {"enable_thinking": thinking.type != "disabled"}
        chat["thinking_token_budget"] = thinking.budget_tokens
    if config is not None and config.effort is not None:
        chat["reasoning_effort"] = "xhigh" if config.effort == "max" else config.effort
    if config is not None and config.format is not None:
        form = {"name": "answer", "schema": config.format.form, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    return chat


def _tool(tool: CustomTool) -> Json:
    said = tool.model_dump(include={"name", "description", "strict"}, exclude_none=True)
    return {"type": "function", "function": {**said, "parameters": tool.input_schema}}


def _messages(fields: InputTokensBody) -> Iterable[Json]:
    """Yield the chat's messages; results of tools are messages of their own."""
    if fields.system:
        yield {"role": "system", "content": _text(fields.system)}
    for turn in fields.messages:
        if isinstance(turn.content, str):
            yield {"role": turn.role, "content": turn.content}
        elif isinstance(turn, AnswerTurn):
            yield _answer(turn.content)
        else:
            for block in turn.content:
                if isinstance(block, ToolResultBlock):
                    content = _text(block.content)
                    yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
            texts = [block for block in turn.content if isinstance(block, TextBlock)]
            if texts:
                yield {"role": turn.role, "content": _text(texts)}


def _answer(blocks: Iterable[AnswerBlock]) -> Json:
    """Return an earlier answer's message."""
    texts, thoughts, calls = list[TextBlock](), list[str](), list[Json]()
    for block in blocks:
        match block:
            case TextBlock():
                texts.append(block)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": json.dumps(block.input)}
                calls.append({"id": block.id, "type": "function", "function": function})
    said: Json = {"role": "assistant", "content": _text(texts)}
    if thoughts:
        said["reasoning"] = "\n".join(thoughts)
    return {**said, "tool_calls": calls} if calls else said


def _text(content: str | Iterable[TextBlock]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content)
