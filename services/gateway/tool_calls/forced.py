"""Calls that a client requires: a grammar makes the answer a JSON list of them, for any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.gateway.grammars import Grammar, of_schema
from services.gateway.tool_calls.source import Called, GrowingText, Reading

MOST_CALLS = 16
"""Calls of one answer: a model that repeats itself comes to an end."""
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def read_list(source: GrowingText) -> Reading[None]:
    """Read a JSON list of calls."""
    if (yield from source.skip_spaces()) == "[":
        source.take(1)
        while (char := (yield from source.skip_spaces())) in ("{", ","):
            if char == ",":
                source.take(1)
            else:
                yield from source.call_object()


def read_arguments(source: GrowingText, name: str) -> Reading[None]:
    """Read the arguments of the one call whose name is known."""
    yield from source.skip_spaces()
    if source.text:
        source.events.append(Called(name))
        yield from source.argue()


def grammar_of_list(tools: Sequence[Mapping[str, Any]], *, several: bool) -> Grammar:
    """Return the grammar of a list of calls of these tools (OpenAI's ``function`` objects)."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, "parameters": {"$ref": _place(n)}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for n, tool in enumerate(tools)
    ]
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "maxItems": MOST_CALLS if several else 1,
        "items": {"anyOf": calls},
        "$defs": {f"tool{n}": closed(_parameters(t), _place(n)) for n, t in enumerate(tools)},
    }
    return of_schema(schema, "tools", lenient=True)


def grammar_of_arguments(tool: Mapping[str, Any]) -> Grammar:
    """Return the grammar of the arguments of one tool."""
    return of_schema(closed(_parameters(tool), "#"), "tools", lenient=True)


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool.get("parameters") or NO_PARAMETERS


def _place(number: int) -> str:
    return f"#/$defs/tool{number}"


def closed(schema: Any, place: str) -> Any:
    """Return a schema at its new place, whose objects have the declared properties alone."""
    if isinstance(schema, list):
        return [closed(part, place) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy = {
        word: place + value[1:]
        if word == "$ref" and isinstance(value, str) and value.startswith("#")
        else closed(value, place)
        for word, value in schema.items()
    }
    if isinstance(copy.get("properties"), dict) and copy.get("type") == "object":
        copy.setdefault("additionalProperties", False)
    return copy
