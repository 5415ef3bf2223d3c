"""OpenAI's request bodies as pydantic models. A refusal names the field, its value and the limit.

Accepted beyond OpenAI's own: every field of ``SamplingParams`` (vLLM's ``top_k``, ``min_p`` and so
on), vLLM's ``chat_template_kwargs`` and ``return_token_ids``, and our own object ``headway``:
``{"pacing": false}`` switches the token pacer off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Tag,
    ValidationError,
    create_model,
    model_validator,
    with_config,
)
from pydantic_core import from_json
from typing_extensions import TypedDict

from headway.errors import Code, HeadwayError, invalid
from headway.request import MAX_LOGPROBS, SamplingParams
from services.gateway.api_call import ApiCall, ChatInput, ReplyStyle

MAX_CHOICES = 128  # inputs × n
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions

# Accepted and without effect here: bookkeeping of OpenAI's platform.
HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "parallel_tool_calls"}
    | {"safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
# Refused unless the value has no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "tool_calls": ([],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "prompt_logprobs": (0,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "continuous_usage_stats": (False,),
    **dict.fromkeys(("audio", "prediction", "web_search_options", "guided_json"), ()),
    **dict.fromkeys(("reasoning_effort", "verbosity"), ()),
}
OF_STREAMS = frozenset({"include_obfuscation"})
OF_ANSWERS = frozenset({"refusal", "annotations"})  # sent back with our own earlier answers
_SPECIAL = frozenset({*NEUTRAL, *HARMLESS, *OF_STREAMS, *OF_ANSWERS})


def _drop_neutral(fields: Any, harmless: frozenset[str]) -> Any:
    """Leave out the fields that ask for nothing; null counts as absent."""
    if not isinstance(fields, dict) or (
        fields.keys().isdisjoint(_SPECIAL) and None not in fields.values()
    ):
        return fields  # nearly always: a shortcut
    return {
        name: value
        for name, value in fields.items()
        if value is not None
        and name not in harmless
        and (name not in NEUTRAL or not _asks_for_nothing(value, NEUTRAL[name]))
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
    list[TextPart], AfterValidator(lambda parts: "\n".join(p["text"] for p in parts)), Tag("~parts")
]
Role = Literal["system", "developer", "user", "assistant"]


@with_config(ConfigDict(extra="forbid", strict=True))
class Message(TypedDict):
    """A message as chat templates want it: text content, and a role that they know."""

    role: Annotated[Role, AfterValidator(lambda role: "system" if role == "developer" else role)]
    content: Text | Parts
    name: NotRequired[Text]
    reasoning_content: NotRequired[Text]


class Fields(BaseModel):
    """An object whose unknown fields are refused, unless they ask for nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)
    harmless: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _drop(cls, fields: Any) -> Any:
        return _drop_neutral(fields, cls.harmless)


class StreamOptions(Fields):
    """The object ``stream_options``."""

    harmless: ClassVar[frozenset[str]] = OF_STREAMS
    include_usage: bool = False


class Extension(Fields):
    """The object ``headway``. All but ``pacing`` are fields of ``Request``, by the same names."""

    pacing: bool = True


class Stops(Fields):
    """The part of a body that ends an output."""

    stop: StopStrings = []


class Conversation(Fields):
    """The part of a body that holds a chat."""

    messages: Annotated[
        list[Annotated[Message, BeforeValidator(lambda said: _drop_neutral(said, OF_ANSWERS))],],
        Field(min_length=1, fail_fast=True),
    ]


class Body(Stops):
    """The fields of both kinds of request; those of ``SamplingParams`` are added below."""

    harmless: ClassVar[frozenset[str]] = HARMLESS
    model: Text
    n: Whole = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    max_completion_tokens: Whole | None = None
    headway: Extension | None = None


class ChatBody(Body, Conversation):
    """``POST /v1/chat/completions``."""

    chat_template_kwargs: dict[str, Any] = {}
    logprobs: bool = False
    top_logprobs: Whole | None = None


class CompletionBody(Body):
    """``POST /v1/completions``."""

    prompt: Text | TokenIds | Prompts
    logprobs: Whole | None = None


F = TypeVar("F", bound=Fields)
_KINDS = {int: Whole, float: Number, bool: bool, tuple[int, ...]: StopIds}
# A client asks for ``num_logprobs`` by other names.
_SAMPLING = {n: _KINDS[t] for n, t in get_type_hints(SamplingParams).items() if t in _KINDS}


def _with_sampling(base: type[F]) -> type[F]:
    sampling: dict[str, Any] = {name: (kind, None) for name, kind in _SAMPLING.items()}
    return create_model(base.__name__, __base__=base, **sampling)


CHAT, COMPLETION = _with_sampling(ChatBody), _with_sampling(CompletionBody)


# --- reading --------------------------------------------------------------------------


def parse_chat(body: Mapping[str, Any]) -> tuple[ApiCall, ReplyStyle]:
    """Read a body of ``POST /v1/chat/completions``."""
    fields = read(CHAT, body)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid("top_logprobs", fields.top_logprobs, "left out unless logprobs is true")
    num_logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    sampling = _sampling(fields, "top_logprobs", num_logprobs)
    inputs = (ChatInput(fields.messages, fields.chat_template_kwargs),)
    call = ApiCall(fields.model, inputs, sampling, split_reasoning=True, **_options(fields, 1))
    return call, _style(fields, chat=True, logprobs=fields.logprobs)


def parse_completion(body: Mapping[str, Any]) -> tuple[ApiCall, ReplyStyle]:
    """Read a body of ``POST /v1/completions``."""
    fields = read(COMPLETION, body)
    sampling = _sampling(fields, "logprobs", fields.logprobs)
    inputs = tuple(fields.prompt) if isinstance(fields.prompt, list) else (fields.prompt,)
    options = _options(fields, len(inputs))
    call = ApiCall(
        fields.model, inputs, sampling, default_max_tokens=COMPLETION_MAX_TOKENS, **options
    )
    return call, _style(fields, chat=False, logprobs=fields.logprobs is not None)


def _options(fields: Body, num_inputs: int) -> dict[str, Any]:
    """Return the fields of an ``ApiCall`` that both kinds of body give."""
    most = MAX_CHOICES // num_inputs
    if not 1 <= fields.n <= most:
        raise invalid("n", fields.n, f"from 1 to {most} for {num_inputs} prompts")
    options: dict[str, Any] = {"num_choices": fields.n, "stops": tuple(fields.stop)}
    if fields.headway is not None:
        own = fields.headway.model_dump(exclude_unset=True)
        options |= {"paced": own.pop("pacing", True), "request_fields": own}
    return options


def _sampling(fields: Body, param: str, num_logprobs: int | None) -> dict[str, Any]:
    """Return the sampling fields of the body, by the names of ``SamplingParams``."""
    said, values = fields.model_fields_set, fields.__dict__
    chosen = {name: values[name] for name in _SAMPLING if name in said}
    if chosen.get("top_k") == -1:  # also off, in vLLM
        chosen["top_k"] = 0
    if "seed" in chosen:
        chosen["seed"] %= 2**64  # OpenAI allows negative ones
    old, new = chosen.get("max_tokens"), fields.max_completion_tokens
    if new is not None:
        if old not in (None, new):
            message = f"max_tokens is {old} and max_completion_tokens is {new}; give one of them"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_completion_tokens")
        chosen["max_tokens"] = new
    if num_logprobs is not None:
        if not 0 <= num_logprobs <= MAX_LOGPROBS:
            raise invalid(param, num_logprobs, f"from 0 to {MAX_LOGPROBS}")
        chosen["num_logprobs"] = num_logprobs
    return chosen


def _style(fields: Body, *, chat: bool, logprobs: bool) -> ReplyStyle:
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise invalid("stream_options", options.model_dump(), "left out without stream")
    usage = options is not None and options.include_usage
    return ReplyStyle(chat, fields.stream, usage, fields.return_token_ids, logprobs)


def read(model: type[F], fields: Mapping[str, Any]) -> F:
    """Check an object's fields. INVALID_ARGUMENT names the first one that is wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> HeadwayError:
    """Turn pydantic's errors into one of ours: the deepest one, with all alternatives there."""
    errors = [(_path(one["loc"]), one) for one in error.errors(include_url=False)]
    path, found = max(errors, key=lambda entry: len(entry[0]))
    param = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]
    match found["type"]:
        case "missing":
            message = f"{param} is missing; it is required"
        case "extra_forbidden":
            trouble = "supported" if path[-1] in NEUTRAL else "a parameter of this API"
            message = f"{param} is not {trouble}; leave it out"
        case "string_unicode":
            message = f"{param} is not valid Unicode: it has half of a surrogate pair"
        case _:
            shown = repr(found["input"])
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            limits = (one["msg"].partition(" should ")[2] for at, one in errors if at == path)
            limit = " or ".join(limits).replace("dictionary", "object")
            message = f"{param} is {shown}; it must {limit or 'fit into 64 bits'}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param=param)


def _path(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return the way to a value; an entry of ``stop`` and the like is named by the whole list."""
    path = tuple(step for step in loc if not str(step).startswith("~"))
    return path[:1] if path[:1] in (("stop",), ("stop_token_ids",)) else path


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Read the body as a JSON object. INVALID_ARGUMENT says what is wrong with it.

    NaN and Infinity, bad UTF-8 and nesting by the hundred are refused.
    """
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise _bad_body(_trouble(body, str(error))) from error
    if not isinstance(found, dict):
        raise _bad_body(f"is a JSON {type(found).__name__}; it must be an object")
    return found


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
