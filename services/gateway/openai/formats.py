"""The fields by which a client asks for a form of the answer, as a grammar.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_…``, SGLang's ``regex`` and
``ebnf``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from headway.errors import Code, HeadwayError
from services.gateway.grammars import (
    ANY_OBJECT,
    Grammar,
    of_choice,
    of_regex,
    of_rules,
    of_schema,
)
from services.gateway.openai.shapes import Fields, Neutral, Text

MAX_PATTERN_CHARS = 2**14
MAX_CHOICE_TEXTS = 1024

Schema = dict[str, Any] | Annotated[Text, Field(max_length=2**16)]
Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=0, max_length=MAX_PATTERN_CHARS)]],
    Field(min_length=1, max_length=MAX_CHOICE_TEXTS),
]


class JsonSchema(Fields):
    """The object ``response_format.json_schema``."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)
    harmless: ClassVar[frozenset[str]] = frozenset({"name", "description", "strict"})
    of: Annotated[dict[str, Any], Field(alias="schema")] = Field({})


class ResponseFormat(Fields):
    """The object ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Fields):
    """vLLM's object ``structured_outputs``."""

    neutral: ClassVar[Neutral] = {
        "json_object": (False,),
        "disable_fallback": (False,),
        "disable_any_whitespace": (False, True),
        "disable_additional_properties": (False,),
    }
    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    json_object: bool = False


class Form(Fields):
    """The part of a body that asks for a form of the answer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None
    regex: Pattern | None = None
    ebnf: Pattern | None = None


_PLAIN: Mapping[str, Callable[[Any, str], Grammar]] = {
    "guided_json": of_schema,
    "guided_regex": of_regex,
    "guided_choice": of_choice,
    "guided_grammar": of_rules,
    "regex": of_regex,
    "ebnf": of_rules,
}
_STRUCTURED: Mapping[str, Callable[[Any, str], Grammar]] = {
    "json_": of_schema,
    "regex": of_regex,
    "choice": of_choice,
    "grammar": of_rules,
}


def grammar_of(fields: Form) -> Grammar | None:
    """Return the grammar that a body asks for, None if any text will do.

    INVALID_ARGUMENT where it asks for two forms, or for one that cannot be followed.
    """
    grammars = [
        make(value, name)
        for name, make in _PLAIN.items()
        if (value := getattr(fields, name)) is not None
    ]
    grammars += _of_response_format(fields.response_format)
    grammars += _of_structured(fields.structured_outputs)
    if len(grammars) > 1 and _asks_for_any_object(fields):
        grammars = [grammar for grammar in grammars if grammar.param != "response_format"]
    if len(grammars) > 1:
        names = " and ".join(grammar.param for grammar in grammars)
        message = f"{names} are given; an answer has one form"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param=grammars[1].param)
    return grammars[0] if grammars else None


def _asks_for_any_object(fields: Form) -> bool:
    """Return whether ``response_format`` asks for less than a schema beside it would."""
    asked, others = fields.response_format, fields.structured_outputs
    given = (fields.guided_json, None if others is None else others.json_)
    has_schema = any(schema is not None for schema in given)
    return has_schema and asked is not None and asked.type == "json_object"


def _of_response_format(asked: ResponseFormat | None) -> list[Grammar]:
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [of_schema(ANY_OBJECT, "response_format")]
    if asked.json_schema is None:
        message = "response_format.json_schema is missing; it is required"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="response_format.json_schema")
    return [of_schema(asked.json_schema.of, "response_format.json_schema.schema")]


def _of_structured(asked: StructuredOutputs | None) -> list[Grammar]:
    if asked is None:
        return []
    grammars = [
        make(value, f"structured_outputs.{name.rstrip('_')}")
        for name, make in _STRUCTURED.items()
        if (value := getattr(asked, name)) is not None
    ]
    if asked.json_object:
        grammars.append(of_schema(ANY_OBJECT, "structured_outputs.json_object"))
    return grammars
