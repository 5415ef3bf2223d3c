"""Shapes of values in OpenAI's bodies. A refusal names the field, its value and the limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json
from typing_extensions import TypedDict

from headway.errors import Code, HeadwayError

MAX_CHOICES = 128  # inputs × n
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_FIELDS = 256
"""Fields of an object: each wrong one of more would be an error of its own."""
_PLAIN = frozenset({str, int, bool, type(None)})
_SLICE = 4096
"""Values of a list that are looked at in one go: other threads wait for it."""

Neutral = Mapping[str, tuple[Any, ...]]
"""Fields that are refused unless they have one of these values, which ask for nothing."""


def drop_neutral(fields: Any, harmless: frozenset[str], neutral: Neutral) -> Any:
    """Leave out the fields that ask for nothing; null counts as absent.

    ValueError for an object with too many.
    """
    if not isinstance(fields, dict):
        return fields
    if len(fields) > MAX_FIELDS:
        raise ValueError(f"it should have at most {MAX_FIELDS} fields")
    return {
        name: value
        for name, value in fields.items()
        if value is not None
        and name not in harmless
        and not (name in neutral and _asks_for_nothing(value, neutral[name]))
    }


def _asks_for_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == allowed and type(value) is type(allowed) for allowed in neutral)


# --- the shapes: a tag (~) names an alternative in pydantic's errors ------------------


def _read_whole(value: Any) -> Any:
    """Count 1.0 as a whole number."""
    return int(value) if type(value) is float and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_read_whole), Field(gt=-(2**64), lt=2**64)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=0), Tag("~text")]  # a bound finds half surrogate pairs
TokenIds = Annotated[
    tuple[Annotated[int, Field(strict=True)], ...],
    Field(strict=False, min_length=1, fail_fast=True),
    Tag("~ids"),
]
Prompts = Annotated[
    list[Text | TokenIds],
    Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
    Tag("~several"),
]
StopIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**32)]], Field(fail_fast=True), AfterValidator(tuple)
]
StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
]


class TextPart(TypedDict):
    """A part of a message's content; this model reads text alone."""

    type: Literal["text"]
    text: Text


Parts = Annotated[
    list[TextPart],
    Field(fail_fast=True),
    AfterValidator(lambda parts: "\n".join(p["text"] for p in parts)),
    Tag("~parts"),
]


class Fields(BaseModel):
    """An object whose unknown fields are refused, unless they ask for nothing.

    ``harmless`` fields are accepted with any value, and have no effect.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    harmless: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop(cls, fields: Any) -> Any:
        return drop_neutral(fields, cls.harmless, cls.neutral)


# --- reading --------------------------------------------------------------------------

F = TypeVar("F", bound=Fields)


_PYDANTICS = re.compile(r" or instance of \w+| after validation, not \d+")
"""Words of pydantic's errors that are about our own code."""
_JSON_KINDS = {list: "array", str: "string", bool: "boolean", type(None): "null"}


def read(model: type[F], fields: Mapping[str, Any]) -> F:
    """Check an object's fields. INVALID_ARGUMENT names the first one that is wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error, model.neutral) from None


def _in_json(limit: str) -> str:
    """Return what a value should be in JSON's words."""
    return _PYDANTICS.sub("", limit).replace("dictionary", "object").replace("tuple", "list")


def _refusal(error: ValidationError, neutral: Neutral) -> HeadwayError:
    """Turn pydantic's errors into one of ours: the deepest one, with all alternatives there."""
    errors = [(_path(one["loc"]), one) for one in error.errors(include_url=False)]
    path, deepest = max(errors, key=lambda entry: len(entry[0]))
    param = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]
    match deepest["type"]:
        case "missing":
            message = f"{param} is missing; it is required"
        case "extra_forbidden":
            trouble = "supported" if path[-1] in neutral else "a parameter of this API"
            message = f"{param} is not {trouble}; leave it out"
        case "string_unicode":
            message = f"{param} is not valid Unicode: it has half of a surrogate pair"
        case "union_tag_invalid":
            context = deepest["ctx"]
            tag, known = context["tag"][1:], context["expected_tags"].replace("~", "")
            message = f"{param}.type is {tag!r}; it must be one of {known}"
            if tag in ("", "None"):
                message = f"{param} must be an object with a type, one of {known}"
        case _:
            text = repr(deepest["input"])
            text = text if len(text) <= 80 else f"{text[:77]}..."
            limits = [one["msg"].partition(" should ")[2] for at, one in errors if at == path]
            limit = " or ".join(dict.fromkeys(_in_json(each) for each in limits))
            message = f"{param or 'the body'} is {text}; it must {limit or 'fit into 64 bits'}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param=param)


def _path(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return the way to a value; an entry of ``stop`` and the like is named by the whole list."""
    path = tuple(step for step in loc if not str(step).startswith("~"))
    return path[:1] if path[:1] in (("stop",), ("stop_token_ids",)) else path


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Read the body as a JSON object. INVALID_ARGUMENT says what is wrong with it.

    NaN and Infinity, bad UTF-8 and nesting by the hundred are refused, and so are numbers that
    would be read as infinity.
    """
    try:
        parsed = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise _bad_body(_trouble(body, str(error))) from error
    if not _is_finite(parsed):
        raise _bad_body("has a number beyond 1.8e308")
    if not isinstance(parsed, dict):
        kind = _JSON_KINDS.get(type(parsed), "number")
        raise _bad_body(f"is a JSON {kind}; it must be an object")
    return parsed


def _is_finite(parsed: object) -> bool:
    """Return whether no number in it, however deep, was read as infinity."""
    left = [parsed]
    while left:
        value = left.pop()
        if isinstance(value, float) and not isfinite(value):
            return False
        values = [*value.values()] if isinstance(value, dict) else value
        if isinstance(values, list):
            for first in range(0, len(values), _SLICE):
                some = values[first : first + _SLICE]
                if not _PLAIN.issuperset(map(type, some)):
                    left += [each for each in some if type(each) not in _PLAIN]
    return True


def _trouble(body: bytes, error: str) -> str:
    if "recursion" in error:
        return "is nested too deeply; a request needs about ten levels"
    try:
        lines = body.decode().split("\n")
    except UnicodeDecodeError as bad:
        return f"is not UTF-8 (byte {bad.start}: {bad.reason})"
    line, column = (int(number) for number in re.findall(r"\d+", error)[-2:])
    return f"is not JSON: {error}, at {lines[line - 1][column - 1 : column + 15]!r}"


def _bad_body(what: str) -> HeadwayError:
    return HeadwayError(Code.INVALID_ARGUMENT, f"the request body {what}")
