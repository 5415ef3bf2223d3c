"""The tools that a body offers, and how the answer has to use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway.errors import Code, HeadwayError, invalid
from services.gateway.api_call import ToolUse
from services.gateway.grammars import Grammar
from services.gateway.openai.formats import Form
from services.gateway.openai.messages import ChosenTool, Tools
from services.gateway.tool_calls import REQUIRED, forced, named


class ToolOffer(NamedTuple):
    """The tools of a body, and its choice among them."""

    described: Sequence[Mapping[str, Any]] = ()
    """The tools for the chat template."""
    use: ToolUse | None = None
    """How calls are read from the answer; None: they are not."""
    grammar: Grammar | None = None
    """The form of the answer where it has to call; else None."""


class Offering(Tools, Form):
    """A body that may offer tools and ask for a form."""


def tools_of(fields: Offering) -> ToolOffer:
    """Read the tools of a body. INVALID_ARGUMENT where a choice has no tool."""
    choice, several = fields.tool_choice, fields.parallel_tool_calls is not False
    if not fields.tools:
        if choice in (None, "none", "auto"):
            return ToolOffer()
        raise HeadwayError(
            Code.INVALID_ARGUMENT,
            "tool_choice asks for a call, and there are no tools: give tools",
            param="tool_choice",
        )
    if choice == "none":
        return ToolOffer()
    unsaid = {"function": {"strict"}}
    described = [tool.model_dump(exclude_none=True, exclude=unsaid) for tool in fields.tools]
    functions = {tool.function.name: tool.function.model_dump() for tool in fields.tools}
    if len(functions) < len(described):
        raise invalid("tools", [*functions], "tools with different names")
    if choice is None or choice == "auto":
        return ToolOffer(described, ToolUse(None, several, tuple(functions.values())))
    if choice == "required":
        several = fields.parallel_tool_calls is True  # one call is asked for, unless more are
        grammar = forced.grammar_of_list([*functions.values()], several=several)
        return ToolOffer(described, ToolUse(REQUIRED, several), grammar)
    assert isinstance(choice, ChosenTool), "what else is left"
    name = choice.function.name
    if name not in functions:
        raise invalid("tool_choice", name, f"one of {', '.join(functions)}")
    return ToolOffer(
        described,
        ToolUse(named(name), several=False),
        forced.grammar_of_arguments(functions[name]),
    )
