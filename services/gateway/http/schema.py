"""The API's description for tools: OpenAPI 3.1, drawn from the models that read the bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from headway.request import MAX_LOGPROBS, MAX_SESSION_CHARS, MAX_STOP_TOKEN_IDS
from services.gateway.anthropic.requests import InputTokensBody, MessagesBody
from services.gateway.openai.messages import MESSAGES, OF_ANSWERS, OF_MESSAGES
from services.gateway.openai.requests import CHAT, COMPLETION
from services.gateway.openai.responses import ResponseBody
from services.gateway.openai.shapes import MAX_CHOICES, Fields, Neutral
from services.gateway.openai.tokens import ChatToTokens, TextToTokens, TokensToText

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
# As pydantic leaves wide ones; an answer is also a message, so that more than one may fit.
_WORDS = {"gt": "exclusiveMinimum", "lt": "exclusiveMaximum", "oneOf": "anyOf"}
_WORDS |= {"ge": "minimum", "le": "maximum"}
_STOP_REASONS = ["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_STOP_REASONS += ["model_context_window_exceeded"]
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
            "/v1/responses": _post(
                "response", "Answer items, or go on from a stored response.", secured
            ),
            "/v1/messages": _messages(secured),
            "/v1/messages/count_tokens": _of_messages(
                _posts("countTokens", "InputTokens", "Count a chat's tokens.", secured)
            ),
            "/tokenize": _posts("tokenize", "Tokens", "Count a text's or chat's tokens.", secured),
            "/detokenize": _posts("detokenize", "Text", "Return the text of tokens.", secured),
            "/version": _get("Version", "Name the release.", []),
            "/ping": _get("Pong", "Answer 200 while requests are taken.", []),
            "/load": _get("Load", "Count the outputs that are open.", secured),
            "/v1/models": _get("ModelList", "List the served models and their adapters.", secured),
            "/v1/models/{name}": _get("Model", "Describe a model.", secured, "name", _NO_MODEL),
            "/explain/{request_id}": _get(
                "Explanation",
                "Tell the lives of a call's outputs, and the scheduler's decisions.",
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
            "/trace.json": _get(
                "Trace", "Show the last lives in Chrome's format.", secured, refusals=_NOT_YOURS
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
    name, answer = f"{kind.capitalize()}Body", kind.capitalize()
    streamed = "Server-sent events, each with a JSON chunk; the last one is `[DONE]`."
    content = {**_json(answer), "text/event-stream": {"schema": _TEXT | {"description": streamed}}}
    operation = {
        "operationId": kind,
        "summary": summary,
        "security": secured,
        "parameters": [_pacing_header(), *_session_headers()],
        "requestBody": {"required": True, "content": _json(name)},
        "responses": _responses(content, {**_NO_MODEL, **_NOT_JSON}),
    }
    return {"post": operation}


def _messages(secured: list[Json]) -> Json:
    """Describe Anthropic's route, whose errors have a shape of their own."""
    described = _of_messages(_post("messages", "Answer a conversation, by blocks.", secured))
    content = described["post"]["responses"]["200"]["content"]
    events = "Server-sent events, the last one `message_stop`, or `error`."
    content["text/event-stream"]["schema"] = _TEXT | {"description": events}
    return described


def _of_messages(described: Json) -> Json:
    for status, response in described["post"]["responses"].items():
        if status != "200":
            response["content"] = _json("MessagesRefusal")
    return described


def _posts(kind: str, answer: str, summary: str, secured: list[Json]) -> Json:
    """Describe a route that reads a body and generates nothing."""
    operation = {
        "operationId": kind,
        "summary": summary,
        "security": secured,
        "requestBody": {"required": True, "content": _json(f"{answer}Body")},
        "responses": _responses(_json(answer), {**_NO_MODEL, **_NOT_JSON}),
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


def _session_headers() -> list[Json]:
    name = "The name of the request's session. A name in the body wins."
    ends = "`true` or `1`: the session is over with this request."
    plain = {**_TEXT, "maxLength": MAX_SESSION_CHARS, "pattern": "^[ -~]*$"}
    truths = {**_TEXT, "enum": ["true", "1", "false", "0"]}
    return [
        {"name": "x-session-id", "in": "header", "description": name, "schema": plain},
        {"name": "x-session-end", "in": "header", "description": ends, "schema": truths},
    ]


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
    refused["405"]["headers"] = {"allow": {"schema": _TEXT}}
    return {"200": {"description": "The answer.", "content": content}, **refused}


def _json(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": _REF + schema}}}


# --- bodies ---------------------------------------------------------------------------


def _bodies() -> dict[str, Json]:
    """Return the schemas of the bodies as their models say, and as their readers narrow them."""
    read: tuple[type[Fields], ...] = (CHAT, COMPLETION, TextToTokens, ChatToTokens, TokensToText)
    read += (ResponseBody, MessagesBody, InputTokensBody)
    kinds = [(kind, "validation") for kind in read]
    _, definitions = models_json_schema(kinds, ref_template=_REF + "{model}")  # type: ignore[arg-type]  # a list of literals
    schemas: dict[str, Json] = _plain(definitions["$defs"])
    for name, schema in schemas.items():
        if name in ("ChatBody", "CompletionBody"):
            for field, limits in _RANGES.items():
                _narrow(schema["properties"].get(field, {}), limits)
            if name == "CompletionBody":  # a prompt may come back alone
                for field in ("max_tokens", "max_completion_tokens"):
                    _narrow(schema["properties"][field], {"minimum": 0})
            stops = schema["properties"]["stop"]
            schema["properties"]["stop"] = {"anyOf": [stops["items"], stops]}
        if name != "TextPart":
            _admit_null(schema)
        schema["properties"] = {**_ignored(name), **schema["properties"]}
    schemas["TokensBody"] = {"anyOf": [{"$ref": f"{_REF}{kind.__name__}"} for kind in read[2:4]]}
    schemas["TextBody"] = {"$ref": f"{_REF}{TokensToText.__name__}"}
    return schemas


def _ignored(name: str) -> dict[str, Json]:
    """Return the fields of a model that have no effect, and those that may ask for nothing."""
    if name in MESSAGES:
        return {**_anything(OF_ANSWERS), **_neutral(OF_MESSAGES)}
    kind = _models(Fields).get(name)
    return {} if kind is None else {**_anything(kind.harmless), **_neutral(kind.neutral)}


def _models(base: type[Fields]) -> dict[str, type[Fields]]:
    models = {base.__name__: base}
    for kind in base.__subclasses__():
        models |= _models(kind)
    return models


def _plain(schema: Any) -> Any:
    """Return JSON Schema without pydantic's own words: limits by their names, no titles."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: v for k, v in schema.items() if (k, v) != ("default", None) and not _is_title(k, v)}
    if "patternProperties" in kept:
        kept["additionalProperties"] = False
    return {_WORDS.get(word, word): _plain(part) for word, part in kept.items()}


def _is_title(word: str, value: Any) -> bool:
    return word == "title" and isinstance(value, str)  # not a field of that name


def _anything(names: Iterable[str]) -> dict[str, Json]:
    """Return fields that may hold anything."""
    return {name: {} for name in sorted(names)}


def _neutral(fields: Neutral) -> dict[str, Json]:
    """Return fields that are refused unless they ask for nothing."""
    return {name: {"enum": [*values, None]} for name, values in fields.items()}


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
    end = {"enum": ["stop", "length", "tool_calls"]}
    message = _object(role={"const": "assistant"}, content=_nullable(_TEXT))
    called = _object(name=_TEXT, arguments=_TEXT)
    call = _object(id=_TEXT, type={"const": "function"}, function=called)
    message["properties"]["tool_calls"] = _list(call)
    chosen = _object(index=_COUNT, message=message, finish_reason=end)
    written = _object(index=_COUNT, text=_TEXT, finish_reason=end)
    parent = {"type": ["string", "null"]}
    model = _object(
        id=_TEXT, object={"const": "model"}, max_model_len=_COUNT, root=_TEXT, parent=parent
    )
    error = _object(message=_TEXT, type=_TEXT, param=_nullable(_TEXT), code=_TEXT)
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
        "Response": _object(
            id=_TEXT, object={"const": "response"}, output=_list({"type": "object"})
        ),
        "Messages": _object(
            id=_TEXT,
            type={"const": "message"},
            role={"const": "assistant"},
            model=_TEXT,
            content=_list(_object(type={"enum": ["text", "thinking", "tool_use"]})),
            stop_reason={"enum": _STOP_REASONS},
            stop_sequence=_nullable(_TEXT),
            usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
        ),
        "InputTokens": _object(input_tokens=_COUNT),
        "MessagesRefusal": _object(
            type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT)
        ),
        "Life": _object(status=_TEXT),
        "Version": _object(version=_TEXT),
        "Pong": _object(),
        "Load": _object(server_load=_COUNT),
        "Tokens": _object(count=_COUNT, max_model_len=_COUNT, tokens=_list(_COUNT)),
        "Text": _object(prompt=_TEXT),
        "Explanation": _object(
            request_id=_TEXT,
            decisions=_list({"type": "object"}),
            life={"type": ["object", "null"]},
            reasons=_list({"type": "object"}),
            others=_list({"type": "object"}),
            num_older=_COUNT,
        ),
        "Trace": _object(traceEvents=_list({"type": "object"})),
        "Description": _object(openapi=_TEXT, paths={"type": "object"}),
        "Refusal": _object(error=error),
    }


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}
