"""Messages and tools of a chat, as chat templates want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    with_config,
)
from typing_extensions import TypedDict

from headway.errors import HeadwayError
from services.gateway.openai.shapes import (
    Fields,
    Neutral,
    Parts,
    Text,
    drop_neutral,
    parse_json_object,
)

MAX_TOOLS = 128
MAX_NAME = 128

OF_ANSWERS = frozenset({"refusal", "annotations"})  # sent back with our own earlier answers
OF_MESSAGES: Neutral = {
    "tool_calls": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
}
MESSAGES = frozenset({"Message", "AssistantMessage"})
"""Names of the models of messages."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]+$", max_length=MAX_NAME)]
Role = Literal["system", "developer", "user", "assistant", "tool"]


def _read_arguments(text: Any) -> Any:
    """Return the object in a call's arguments: templates write objects. Other text stays."""
    try:
        return parse_json_object((text or "{}").encode("utf-8", "surrogatepass"))
    except HeadwayError:
        return text


@with_config(ConfigDict(extra="ignore", strict=True))
class CalledFunction(TypedDict):
    """The name and the arguments of an earlier call."""

    name: Text
    arguments: Annotated[Text, AfterValidator(_read_arguments)]


@with_config(ConfigDict(extra="ignore", strict=True))
class ToolCall(TypedDict):
    """An earlier call."""

    id: NotRequired[Text]
    type: NotRequired[Literal["function"]]
    function: CalledFunction


@with_config(ConfigDict(extra="forbid", strict=True))
class Message(TypedDict):
    """A message of anyone but the assistant: text content, and a role that templates know."""

    role: Annotated[Role, AfterValidator(lambda role: "system" if role == "developer" else role)]
    content: Text | Parts
    name: NotRequired[Text]
    tool_call_id: NotRequired[Text]
    reasoning_content: NotRequired[Text]


@with_config(ConfigDict(extra="forbid", strict=True))
class AssistantMessage(TypedDict):
    """An earlier answer: its reasoning has two names, and calls may stand for content."""

    role: Literal["assistant"]
    content: NotRequired[Text | Parts]
    name: NotRequired[Text]
    reasoning_content: NotRequired[Text]
    reasoning: NotRequired[Text]
    tool_calls: NotRequired[Annotated[list[ToolCall], Field(min_length=1, max_length=MAX_TOOLS)]]


def _settle(answer: Any) -> Any:
    """Give an answer its content, and its reasoning the name that templates know."""
    settled = {"role": answer["role"], "content": "", **answer}
    reasoning = settled.pop("reasoning", None)
    if reasoning is not None:
        settled.setdefault("reasoning_content", reasoning)
    return settled


def _who(message: Any) -> str:
    is_answer = isinstance(message, Mapping) and message.get("role") == "assistant"
    return "~answer" if is_answer else "~message"


def _drop(said: Any) -> Any:
    return drop_neutral(said, OF_ANSWERS, OF_MESSAGES)


AnyMessage = Annotated[
    Annotated[Message, Tag("~message")]
    | Annotated[AssistantMessage, AfterValidator(_settle), Tag("~answer")],
    Discriminator(_who),
    BeforeValidator(_drop),
]


class Conversation(Fields):
    """The part of a body that holds a chat."""

    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)]


# --- tools ----------------------------------------------------------------------------


class Function(Fields):
    """A function that the model may call."""

    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(Fields):
    """A tool; the only kind is a function."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Fields):
    """The name in ``tool_choice``."""

    name: Name


class ChosenTool(Fields):
    """The object ``tool_choice``: the one tool to call."""

    type: Literal["function"]
    function: ChosenFunction


class Tools(Fields):
    """The part of a body that offers tools."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: (
        Annotated[Literal["none", "auto", "required"], Tag("~word")]
        | Annotated[ChosenTool, Tag("~tool")]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
