"""Agents on a real cluster: calls that are required and answers in a form, by the small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import AsyncOpenAI

from tests.fakes.local_cluster import local_cluster

pytestmark = pytest.mark.system

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"enum": ["metric", "imperial"]},
    },
    "required": ["city", "days", "units"],
    "additionalProperties": False,
}
NAMES = ("forecast", "history")
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES
]
FORM: Any = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": SCHEMA}}
SAID: Any = [{"role": "user", "content": "Add 17, 25, 8."}]


async def test_calls_and_forms_hold_across_workers(store_url: str, tmp_path: Path) -> None:
    async with local_cluster(
        store_url, "agents", tmp_path, "--prefill", "1", "--decode", "1"
    ) as on:
        client = AsyncOpenAI(
            base_url=f"{on.base_url}/v1", api_key="none", max_retries=0, timeout=240
        )

        async def ask(**more: Any) -> Any:
            created = client.chat.completions.create
            return await created(model="headway-mini", messages=SAID, max_tokens=800, **more)

        for seed in range(2):
            (formed,) = (await ask(response_format=FORM, seed=seed)).choices
            assert formed.finish_reason == "stop"
            Draft202012Validator(SCHEMA).validate(json.loads(formed.message.content))
            assert formed.message.model_extra["reasoning_content"], "it thinks freely before"

        # The small model knows no tools and would think about them for long.
        tools = {"tools": TOOLS, "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
        (required,) = (
            await ask(**tools, tool_choice="required", parallel_tool_calls=False)
        ).choices
        (call,) = required.message.tool_calls
        assert (required.finish_reason, call.function.name in NAMES) == ("tool_calls", True)
        Draft202012Validator(SCHEMA).validate(json.loads(call.function.arguments))

        named = {"type": "function", "function": {"name": "history"}}
        name, arguments = "", ""
        async for chunk in await ask(**tools, tool_choice=named, stream=True):
            for piece in chunk.choices[0].delta.tool_calls or ():
                name += piece.function.name or ""
                arguments += piece.function.arguments or ""
        assert name == "history"
        Draft202012Validator(SCHEMA).validate(json.loads(arguments))
