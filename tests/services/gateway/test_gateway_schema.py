"""The published description of the API: whole, valid, and as strict as the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from headway.errors import HeadwayError
from services.gateway.api_call import complete_sampling
from services.gateway.http import edge
from services.gateway.http.edge import ROUTES
from services.gateway.http.schema import describe
from services.gateway.openai.requests import parse_chat, parse_completion
from tests.fakes.gateway_harness import Cluster, cluster, write_keys

DOCUMENT = describe("1.2.3", needs_key=True, monitoring_needs_key=False)
HELLO = [{"role": "user", "content": "hi"}]


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from (value for word, value in part.items() if word == "$ref")
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from references(inner)


def test_every_route_is_in_it_and_no_other() -> None:
    assert set(DOCUMENT["paths"]) == set(ROUTES)


def test_it_is_a_whole_openapi_document() -> None:
    assert re.fullmatch(r"3\.1\.\d+", DOCUMENT["openapi"])
    assert DOCUMENT["info"]["version"] == "1.2.3"
    assert len({operation["operationId"] for *_, operation in operations()}) == len(ROUTES)
    for path, _, operation in operations():
        said = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert said == set(re.findall(r"{(\w+)}", path))
        assert {"200", "400", "401", "429", "500"} <= set(operation["responses"])
        assert all(response["description"] for response in operation["responses"].values())


def test_every_schema_is_valid_and_every_reference_leads_to_one() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    found = set(references(DOCUMENT))
    assert found <= {f"#/components/schemas/{name}" for name in schemas}
    assert len(found) >= len(schemas) - 1


def test_no_bound_is_in_other_words_than_json_schemas() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        assert not {"ge", "le", "gt", "lt"} & set(words(schema))


def words(part: Any) -> Iterator[str]:
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    yield from part if isinstance(part, dict) else ()
    yield from (word for each in inner for word in words(each))


def test_a_key_is_asked_for_where_the_gateway_asks_for_one() -> None:
    asked = {path for path, _, operation in operations() if operation["security"]}
    assert asked == set(ROUTES) - {
        *("/health", "/livez", "/metrics", "/openapi.json", "/version", "/ping")
    }
    for needs_key, monitoring in ((False, False), (True, True)):
        other = describe("1", needs_key=needs_key, monitoring_needs_key=monitoring)
        health = other["paths"]["/health"]["get"]
        assert bool(health["security"]) == monitoring


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 128},
        {"n": 0},
        {"n": 129},
        {"n": "1"},
        {"n": 1.0},
        {"n": None},
        {"temperature": 2},
        {"temperature": 2.5},
        {"temperature": "1"},
        {"top_p": 0},
        {"top_k": -1},
        {"top_k": -2},
        {"min_p": 1.5},
        {"seed": -5},
        {"seed": 2**64},
        {"repetition_penalty": 0},
        {"presence_penalty": -3},
        {"max_tokens": 0},
        {"max_completion_tokens": 5},
        {"stop": "x"},
        {"stop": ""},
        {"stop": ["a"] * 16},
        {"stop": ["a"] * 17},
        {"stop_token_ids": [5, 2**32]},
        {"stop_token_ids": [5] * 65},
        {"ignore_eos": 1},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"other": True}},
        {"headway": {"pacing": False}},
        {"headway": {"pacing": 0}},
        {"user": ["anything"]},
        {"tools": []},
        {"tools": [{}]},
        {"logit_bias": None},
        {"logit_bias": {"5": 1}},
        {"logit_bias": {"5": 101}},
        {"logit_bias": {"x": 1}},
        {"bad_words": ["x"]},
        {"bad_words": [""]},
        {"allowed_token_ids": []},
        {"include_stop_str_in_output": True},
        {"chat_template": ""},
        {"length_penalty": 2},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "name": 5}}},
        {"response_format": {"type": "xml"}},
        {"guided_json": {"type": "object"}},
        {"guided_json": 5},
        {"guided_choice": ["a"]},
        {"guided_choice": []},
        {"structured_outputs": {"json": {}, "disable_fallback": False}},
        {"structured_outputs": {"disable_fallback": True}},
        {"unknown": None},
        {"unknown": 1},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "assistant", "reasoning": "x"}]},
        {"messages": [{"role": "user", "reasoning": "x"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]},
        {"tool_choice": "none"},
        {"tool_choice": "all"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [], "refusal": None}]},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [1, 2]},
        {"prompt": [1.5]},
        {"prompt": ["a", [1]]},
        {"prompt": ["a"] * 129},
    ],
)
def test_the_gateway_takes_what_the_schema_takes_and_nothing_else(more: dict[str, Any]) -> None:
    kind, parse = (
        ("CompletionBody", parse_completion) if "prompt" in more else ("ChatBody", parse_chat)
    )
    own = {} if "prompt" in more else {"messages": HELLO}
    body = {"model": "m", **own, **more}
    schema = {"$ref": f"#/components/schemas/{kind}", "components": DOCUMENT["components"]}
    try:
        call, _ = parse(body)
        complete_sampling(
            call.sampling, {}, default_max_tokens=16, num_prompt_tokens=1, max_model_len=99, seed=1
        )
    except HeadwayError:
        taken = False
    else:
        taken = True
    assert Draft202012Validator(schema).is_valid(body) == taken


async def test_it_is_written_once_however_often_it_is_asked_for(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[str] = []

    def counted(version: str, **needs: bool) -> dict[str, Any]:
        described.append(version)
        return dict(describe(version, **needs))

    monkeypatch.setattr(edge, "describe", counted)
    async with running.http() as client:
        for _ in range(3):
            assert (await client.get("/openapi.json")).json()["openapi"] == "3.1.0"
    assert len(described) == 1


async def test_it_is_published_to_everybody(tmp_path: Path, store_url: str) -> None:
    keys = write_keys(tmp_path)
    async with cluster(tmp_path, store_url, api_key_file=keys) as running, running.http() as client:
        found = await client.get("/openapi.json")
        assert found.status_code == 200
        assert found.json()["paths"].keys() == set(ROUTES)
        assert found.json()["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
        assert (await client.get("/v1/models")).status_code == 401


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        *(
            ("/health", "Health"),
            ("/livez", "Life"),
            ("/v1/models", "ModelList"),
            ("/v1/models/tiny", "Model"),
        ),
        *(("/version", "Version"), ("/ping", "Pong"), ("/load", "Load")),
        *(("/openapi.json", "Description"), ("/no", "Refusal"), ("/v1/models/no", "Refusal")),
    ],
)
async def test_answers_are_as_described(running: Cluster, path: str, answer: str) -> None:
    async with running.http() as client:
        check(answer, (await client.get(path)).json())


async def test_generated_answers_are_as_described(running: Cluster) -> None:
    async with running.http() as client:
        chat = {"model": "tiny", "messages": HELLO}
        check("Chat", (await client.post("/v1/chat/completions", json=chat)).json())
        plain = {"model": "tiny", "prompt": "ab", "n": 2}
        check("Completion", (await client.post("/v1/completions", json=plain)).json())
        check("Tokens", (await client.post("/tokenize", json={"prompt": "ab"})).json())
        check("Text", (await client.post("/detokenize", json={"tokens": [97]})).json())


def check(answer: str, found: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{answer}", "components": DOCUMENT["components"]}
    Draft202012Validator(schema).validate(found)
