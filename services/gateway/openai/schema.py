"""The API's description for tools: OpenAPI 3.1, drawn from the models that read the bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from headway.request import MAX_LOGPROBS, MAX_STOP_TOKEN_IDS
from services.gateway.openai.requests import (
    CHAT,
    COMPLETION,
    HARMLESS,
    MAX_CHOICES,
    NEUTRAL,
    OF_ANSWERS,
    OF_STREAMS,
)

Json = dict[str, Any]

_REF = "#/components/schemas/"
_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
# What the models leave to ``SamplingParams`` and to the readers of bodies: the values in range.
_RANGES: Mapping[str, Json] = {
    "temperature": {"minimum": 0, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1, "maximum": 2**31 - 1},
    "min_p": {"minimum": 0, "maximum": 1},
    "repetition_penalty": {"exclusiveMinimum": 0, "maximum": 2},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "max_tokens": {"minimum": 1, "maximum": 2**31 - 1},
    "max_completion_tokens": {"minimum": 1, "maximum": 2**31 - 1},
    "min_tokens": {"minimum": 0, "maximum": 2**31 - 1},
    "stop_token_ids": {"maxItems": MAX_STOP_TOKEN_IDS},
    "logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "top_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "n": {"minimum": 1, "maximum": MAX_CHOICES},
}
_WORDS = {"gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}  # as pydantic leaves wide ones
# Refusals of any route, and of those that generate, by status.
_ANY = {
    400: "The request is malformed, or a value is out of range.",
    401: "There is no API key, or none that is known.",
    403: "The host or the page's origin is not allowed.",
    405: "The route takes another method.",
    408: "The request took too long to arrive, or to answer.",
    413: "The body is too long.",
    429: "The client holds its share of a bound; `retry-after` says when to ask again.",
    431: "The head is too long.",
    500: "The gateway or a worker failed on the request.",
    503: "No scheduler or no connection is free, or the gateway is shutting down.",
}
_NO_MODEL = {404: "The model is not served here."}
_NOT_YOURS = {403: "It belongs to another key, or is for operators."}
_NOT_JSON = {415: "The body is not `application/json`."}


@cache
def describe(version: str, *, needs_key: bool, monitoring_needs_key: bool) -> Json:
    """Return the OpenAPI document of a gateway of this version."""
    secured: list[Json] = [{"key": []}] if needs_key else []
    watched = secured if monitoring_needs_key else []
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headway", "version": version, "description": __doc__},
        "paths": {
            "/v1/chat/completions": _post("chat", "Answer a conversation.", secured),
            "/v1/completions": _post("completion", "Continue a text or token ids.", secured),
            "/v1/models": _get("ModelList", "List the served model.", secured),
            "/v1/models/{name}": _get("Model", "Describe a model.", secured, "name", _NO_MODEL),
            "/explain/{request_id}": _get(
                "Explanation",
                "List the scheduler's decisions.",
                secured,
                "request_id",
                _NOT_YOURS,
            ),
            "/health": _get(
                "Health",
                "Say whether requests are taken; more to operators.",
                [{}, *watched] if watched else [],
            ),
            "/livez": _get("Life", "Answer while the process lives.", []),
            "/metrics": _get(
                "", "Show the metrics in Prometheus' format.", watched, refusals=_NOT_YOURS
            ),
            "/openapi.json": _get("Description", "Describe the API.", []),
        },
        "components": {
            "schemas": {**_bodies(), **_answers()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


# --- routes ---------------------------------------------------------------------------


def _post(kind: str, summary: str, secured: list[Json]) -> Json:
    name = {"chat": "ChatBody", "completion": "CompletionBody"}[kind]
    answer = {"chat": "Chat", "completion": "Completion"}[kind]
    streamed = "Server-sent events, each with a JSON chunk; the last one is `[DONE]`."
    content = {**_json(answer), "text/event-stream": {"schema": _TEXT | {"description": streamed}}}
    operation = {
        "operationId": kind,
        "summary": summary,
        "security": secured,
        "parameters": [_pacing_header()],
        "requestBody": {"required": True, "content": _json(name)},
        "responses": _responses(content, {**_NO_MODEL, **_NOT_JSON}),
    }
    return {"post": operation}


def _get(
    answer: str,
    summary: str,
    secured: list[Json],
    parameter: str = "",
    refusals: Mapping[int, str] | None = None,
) -> Json:
    content = _json(answer) if answer else {"text/plain": {"schema": _TEXT}}
    operation: Json = {
        "operationId": f"get{answer or 'Metrics'}",
        "summary": summary,
        "security": secured,
        "responses": _responses(content, refusals or {}),
    }
    if parameter:
        said = {"name": parameter, "in": "path", "required": True, "schema": _TEXT}
        operation["parameters"] = [said]
    return {"get": operation}


def _pacing_header() -> Json:
    said = "`off` sends answering tokens as soon as they are there."
    return {"name": "x-headway-pacing", "in": "header", "description": said, "schema": _TEXT}


def _responses(content: Json, refusals: Mapping[int, str]) -> Json:
    refused: Json = {
        str(status): {"description": text, "content": _json("Refusal")}
        for status, text in sorted({**_ANY, **refusals}.items())
    }
    for status in ("429", "503"):
        refused[status]["headers"] = {"retry-after": {"schema": _COUNT}}
    return {"200": {"description": "The answer.", "content": content}, **refused}


def _json(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": _REF + schema}}}


# --- bodies ---------------------------------------------------------------------------


def _bodies() -> dict[str, Json]:
    """Return the schemas of the bodies as their models say, and as their readers narrow them."""
    kinds = [(CHAT, "validation"), (COMPLETION, "validation")]
    _, found = models_json_schema(kinds, ref_template=_REF + "{model}")  # type: ignore[arg-type]  # a list of literals
    schemas: dict[str, Json] = _plain(found["$defs"])
    for name, schema in schemas.items():
        ignored: dict[str, Any] = {}
        if name in ("ChatBody", "CompletionBody"):
            ignored = {**_anything(HARMLESS), **_neutral(*NEUTRAL)}
            for field, limits in _RANGES.items():
                _narrow(schema["properties"].get(field, {}), limits)
            stops = schema["properties"]["stop"]
            schema["properties"]["stop"] = {"anyOf": [stops["items"], stops]}
        elif name == "StreamOptions":
            ignored = {**_anything(OF_STREAMS), **_neutral("continuous_usage_stats")}
        elif name == "Message":
            said_before = _neutral("audio", "function_call", "tool_calls")
            ignored = {**_anything(OF_ANSWERS), **said_before}
        if name != "TextPart":
            _admit_null(schema)
        schema["properties"] = {**ignored, **schema["properties"]}
    return schemas


def _plain(schema: Any) -> Any:
    """Return JSON Schema without pydantic's own words: limits by their names, no titles."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: v for k, v in schema.items() if (k, v) != ("default", None) and not _is_title(k, v)}
    return {_WORDS.get(word, word): _plain(part) for word, part in kept.items()}


def _is_title(word: str, value: Any) -> bool:
    return word == "title" and isinstance(value, str)  # not a field of that name


def _anything(names: Iterable[str]) -> dict[str, Json]:
    """Return fields that may hold anything."""
    return {name: {} for name in sorted(names)}


def _neutral(*names: str) -> dict[str, Json]:
    """Return fields that are refused unless they ask for nothing."""
    return {name: {"enum": [*NEUTRAL[name], None]} for name in names}


def _narrow(schema: Json, limits: Json) -> None:
    """Put the limits where the value is; pydantic's wider ones go."""
    for place in (schema, *schema.get("anyOf", ())):
        if place.get("type") in ("integer", "number", "array"):
            for wide in ("exclusiveMinimum", "exclusiveMaximum"):
                place.pop(wide, None)
            place.update(limits)


def _admit_null(schema: Json) -> None:
    """Let null stand for any field that is left out."""
    schema["additionalProperties"] = {"type": "null"}
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        if name not in required and {"type": "null"} not in field.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}


# --- answers --------------------------------------------------------------------------


def _object(**properties: Json) -> Json:
    """Return the schema of an object that has all of these, and perhaps others."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _answers() -> dict[str, Json]:
    usage = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
    end = {"enum": ["stop", "length"]}
    message = _object(role={"const": "assistant"}, content=_TEXT)
    chosen = _object(index=_COUNT, message=message, finish_reason=end)
    written = _object(index=_COUNT, text=_TEXT, finish_reason=end)
    model = _object(id=_TEXT, object={"const": "model"}, max_model_len=_COUNT)
    found = _object(message=_TEXT, type=_TEXT, param=_nullable(_TEXT), code=_TEXT)
    return {
        "Chat": _object(id=_TEXT, model=_TEXT, choices=_list(chosen), usage=usage),
        "Completion": _object(id=_TEXT, model=_TEXT, choices=_list(written), usage=usage),
        "Model": model,
        "ModelList": _object(object={"const": "list"}, data=_list(model)),
        "Health": {
            **_object(
                status=_TEXT, reason=_TEXT, model=_TEXT, scheduler_connected={"type": "boolean"}
            ),
            "required": ["status"],
        },
        "Life": _object(status=_TEXT),
        "Explanation": _object(request_id=_TEXT, decisions=_list({"type": "object"})),
        "Description": _object(openapi=_TEXT, paths={"type": "object"}),
        "Refusal": _object(error=found),
    }


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}
