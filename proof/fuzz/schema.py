"""Fuzzing by the published description: requests drawn from ``/openapi.json``, answers held to it.

A request fits the schema of its operation, but for a value now and then. An answer has a status
and a type that the operation names, a body that fits, and a stream has an end. What schemathesis
finds beside it: ``docs/decisions.md``.
"""

from __future__ import annotations

import http.client
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from proof.fuzz.http import PATIENCE, HttpTarget
from services.runtime.rooms import SHIPPED_MODEL

Json = Any
_WRONG: Sequence[Json] = (None, True, -1, 0, 2**70, 1.5, "", "x", "\ud800", [], {}, [[]], {"a": 1})
_MOST_TOKENS = 8
_DEEPEST = 6
_METHODS = ("get", "post")
_ENDED = re.compile(rb"event: (response\.(completed|incomplete)|message_stop)\n[^\n]*\s*$")


class SchemaTarget(HttpTarget):
    """An input is a JSON object: the operation, its path and its body."""

    def __init__(self) -> None:
        super().__init__()
        status, _, body = self._ask("GET", "/openapi.json", None)
        assert status == 200, "a gateway describes itself"
        self._document: Json = json.loads(body)
        self._operations = {
            f"{method} {path}": operation
            for path, methods in self._document["paths"].items()
            for method, operation in methods.items()
            if method in _METHODS
        }

    def make(self, rng: random.Random) -> bytes:
        """Return a request for some operation, mostly one that generates."""
        names = sorted(self._operations)
        posts = [name for name in names if name.startswith("post")]
        name = rng.choice(posts if rng.random() < 0.8 else names)
        path = name.partition(" ")[2]
        for parameter in self._operations[name].get("parameters", ()):
            if parameter["in"] == "path":
                value = rng.choice((SHIPPED_MODEL, "no", "%00", "a%2Fb", "%F0%9F%99%82"))
                path = path.replace(f"{{{parameter['name']}}}", value)
        made = {"operation": name, "path": path}
        asked = self._operations[name].get("requestBody")
        if asked is not None:
            made["body"] = self._body(asked["content"]["application/json"]["schema"], rng)
        return json.dumps(made).encode()

    def _body(self, schema: Json, rng: random.Random) -> Json:
        body = self._draw(schema, rng, rng.choice((0.0, 0.0, 0.05)), 0)
        if isinstance(body, dict) and rng.random() < 0.95:  # a model that is served, a short answer
            body["model"] = SHIPPED_MODEL
            body["max_tokens"] = rng.randint(1, _MOST_TOKENS)
            for name in ("max_completion_tokens", "min_tokens"):
                body.pop(name, None)
            if body.get("n"):
                body["n"] = rng.randint(1, 3)
        return body

    def _draw(self, schema: Json, rng: random.Random, wrong: float, depth: int) -> Json:
        if rng.random() < wrong:
            return rng.choice(_WRONG)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self._draw(self._document["components"]["schemas"][name], rng, wrong, depth)
        for each in ("anyOf", "oneOf", "allOf"):
            if each in schema:
                return self._draw(rng.choice(schema[each]), rng, wrong, depth + 1)
        if "const" in schema or "enum" in schema:
            return schema["const"] if "const" in schema else rng.choice(schema["enum"])
        kind = schema.get("type", "string")
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, rng, wrong, depth)
        if kind == "array":
            low = schema.get("minItems", 0)
            number = 0 if depth > _DEEPEST else low + rng.randrange(3)
            items = schema.get("items") or {}
            return [self._draw(items, rng, wrong, depth + 1) for _ in range(number)]
        return _scalar(kind, schema, rng)

    def _object(self, schema: Json, rng: random.Random, wrong: float, depth: int) -> Json:
        required, fields = schema.get("required", ()), schema.get("properties", {})
        chance = 0.0 if depth > _DEEPEST else rng.choice((0.05, 0.2, 0.5))
        return {
            name: self._draw(field, rng, wrong, depth + 1)
            for name, field in fields.items()
            if name in required or rng.random() < chance
        }

    # --- what comes of them -----------------------------------------------------------

    def attempt(self, given: bytes) -> str:
        """Send it; the answer must be one that the description allows."""
        try:
            made = json.loads(given)
            operation = self._operations[made["operation"]]
            path, body = str(made["path"]), made.get("body")
        except (ValueError, KeyError, TypeError):
            return ""  # made smaller than a request
        method = str(made["operation"]).partition(" ")[0].upper()
        try:
            status, kind, answer = self._ask(method, path, body)
        except TimeoutError:
            return f"no end of the answer within {PATIENCE:g} s"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return "" if isinstance(error, ValueError) else f"no answer: {type(error).__name__}"
        self._outcomes[str(status)] += 1
        return self._problem(operation, status, kind, answer)

    def _ask(self, method: str, path: str, body: Json) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            packed = None if body is None else json.dumps(body).encode()
            headers = {} if packed is None else {"Content-Type": "application/json"}
            connection.request(method, path, packed, headers)
            response = connection.getresponse()
            kind = response.getheader("content-type", "").partition(";")[0]
            return response.status, kind, response.read()
        finally:
            connection.close()

    def _problem(self, operation: Json, status: int, kind: str, answer: bytes) -> str:
        name = operation["operationId"]
        if status >= 500:
            return f"{name}: status {status}"
        described: Mapping[str, Json] | None = operation["responses"].get(str(status))
        if described is None:
            return f"{name}: status {status} is not described"
        content = described.get("content", {})
        if kind not in content:
            return f"{name}: {status} has the type {kind!r}, which is not described"
        if kind == "text/event-stream":
            whole = answer.rstrip().endswith(b"data: [DONE]") or _ENDED.search(answer)
            return "" if whole else f"{name}: a stream has no end"
        if kind != "application/json":
            return ""
        schema = {**content[kind]["schema"], "components": self._document["components"]}
        try:
            error = next(Draft202012Validator(schema).iter_errors(json.loads(answer)), None)
        except ValueError:
            return f"{name}: {status} has a body that is no JSON"
        return "" if error is None else f"{name}: {status} does not fit at {error.json_path}"


def _scalar(kind: str, schema: Json, rng: random.Random) -> Json:
    """Return a value in range; the ends of the range come often."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", -5))
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + 10))
    match kind:
        case "null":
            return None
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            return rng.choice((low, high, rng.randint(low, high)))
        case "number":
            return rng.choice((low, high, rng.uniform(low, high)))
        case _:
            return rng.choice(("", "a", "hi there", "🙂", "\u0000", "x" * 100))
